"""Queue offsets that are done before their turn."""

from base64 import b64encode
from random import Random
from zlib import compress

import pytest

from storage.tables.ahead_set import AheadSet


@pytest.mark.parametrize("seed", range(5))
def test_set_agrees_with_a_plain_set_and_its_text_keeps_it(seed: int) -> None:
    random = Random(seed)
    start = random.randrange(1 << 40)
    ours, plain, low = AheadSet(), set[int](), start
    for _ in range(400):
        offset = low + random.randrange(200)
        ours.add(offset)
        plain.add(offset)
        if random.random() < 0.05:
            low = ours.first_gap(low)
            ours.forget_below(low)
            plain = {each for each in plain if each >= low}
    for found in (ours, ours.copy(), AheadSet.decode(ours.encode())):
        assert {each for each in range(low, low + 500) if each in found} == plain
        gap = low
        while gap in plain:
            gap += 1
        assert found.first_gap(low) == gap


def test_set_without_offsets_is_false_and_an_empty_text() -> None:
    ours = AheadSet()
    ours.forget_below(10)
    assert not ours and ours.encode() == "" and not AheadSet.decode("")
    ours.add(1_000)
    ours.forget_below(1_008)
    assert not ours and 1_000 not in ours


def test_run_of_offsets_is_passed_in_whole_bytes() -> None:
    ours = AheadSet()
    for offset in range(3, 5_000):
        ours.add(offset)
    assert ours.first_gap(3) == 5_000
    assert ours.first_gap(2) == 2


def test_copy_does_not_change_with_its_original() -> None:
    ours = AheadSet()
    ours.add(5)
    copy = ours.copy()
    ours.add(6)
    assert 6 in ours and 6 not in copy


@pytest.mark.parametrize(
    "text", ["x", "1:AAAA", "8:AAAA", "8:!", "-8:AAAA", ":", "8:" + b64encode(b"xyz").decode()]
)
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="delivered messages"):
        AheadSet.decode(text)


def test_text_unfolds_to_a_bounded_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.tables.ahead_set.AHEAD_BYTES_MAX", 100)
    text = f"8:{b64encode(compress(bytes([255]) * 10_000)).decode()}"
    assert AheadSet.decode(text).first_gap(8) == 808


@pytest.mark.parametrize("seed", range(5))
def test_offsets_are_listed_and_removed_from_both_ends(seed: int) -> None:
    random, ours = Random(seed), AheadSet()
    assert ours.last == -1 and [*ours.offsets()] == []
    plain = {random.randrange(1_000, 1_300) for _ in range(60)}
    for each in plain:
        ours.add(each)
    while plain:
        assert [*ours.offsets()] == sorted(plain) and ours.last == max(plain)
        end = max(plain) - random.randrange(12)
        ours.forget_from(end)
        plain = {each for each in plain if each < end}
    assert not [*ours.offsets()]
