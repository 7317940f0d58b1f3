"""Tests of actors/metrics/packed.py: a long text is made piece by piece, others have turns."""

from time import perf_counter

import pytest

from actors.metrics import packed
from actors.metrics.packed import PAUSE_S, TURN_S, UNPACKED_BYTES, Packer


def test_a_text_is_compressed_piece_by_piece_and_comes_back_a_piece_at_a_time() -> None:
    packer, plain = Packer(), b""
    for number in range(200):
        piece = "".join(f'é{{i="{number}"}} {each}\n' for each in range(500))
        packer.add(piece)
        plain += piece.encode()
    made = packer.packed()
    pieces = [*made.unpacked()]
    assert b"".join(pieces) == plain and made.size == len(plain)
    assert max(map(len, pieces)) <= UNPACKED_BYTES < len(plain) / 2
    assert sum(map(len, made.parts)) < len(plain) / 4


def test_others_get_a_turn_when_it_is_time_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, slept = perf_counter() + 100, []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        slept.append(seconds)
        now_s += 1

    monkeypatch.setattr(packed, "sleep", sleep)
    monkeypatch.setattr(packed, "perf_counter", lambda: now_s)
    packed.let_others_run()
    assert slept == [PAUSE_S], "nobody knows what was before"
    now_s += TURN_S * 0.9
    packed.let_others_run()
    assert len(slept) == 1
    now_s += TURN_S * 0.2
    packed.let_others_run()
    packed.let_others_run()
    assert slept == [PAUSE_S] * 2
    Packer().add("text")
    assert len(slept) == 2
    now_s += TURN_S * 2
    Packer().add("text")
    assert len(slept) == 3, "so does each piece of a text"
