"""Tests of TlsNegotiator and Handshakes on the virtual clock: deadlines and limits.

A5 and A7 of docs/security.md.
"""

from pathlib import Path
from socket import socketpair
from ssl import MemoryBIO
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.network import tls_negotiator as entrance_module
from actors.network.messages import StepHandshake
from actors.network.tls_negotiator import (
    HOST_MAX,
    HOST_SHAKING_MAX,
    SHAKING_MAX,
    TIME_MS,
    WAITING_MAX,
    Handshakes,
)
from remoting.tls_socket import HANDSHAKE_BYTES_MAX, TlsSocket
from tests.support.certificates import Certificates
from tests.support.doors import HELLO, door
from tests.support.peers import Told
from tests.support.told import times


@pytest.mark.parametrize("takes_plain", [True, False])
def test_a_tls_client_is_accepted_and_served(tmp_path: Path, takes_plain: bool) -> None:
    with door(tmp_path, takes_plain=takes_plain) as made:
        guest = made.comes()
        incoming, outgoing = MemoryBIO(), MemoryBIO()
        end = (
            Certificates(tmp_path).calls().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        )
        guest.shakes(end, incoming, outgoing)
        (accepted,) = made.let_in()
        assert isinstance(accepted.sock, TlsSocket)
        assert accepted.remote[0] == "192.0.2.7"
        end.write(b"asked")
        guest.says(outgoing.read())
        assert accepted.sock.recv(1 << 18) == b"asked"
        accepted.sock.close()
        assert made.entrance.shaking_count == 0


def test_a_plain_client_is_served_or_refused_by_tls_mode(tmp_path: Path) -> None:
    with door(tmp_path / "permissive", takes_plain=True) as made:
        guest = made.comes(says=b"\0\0\0\5plain")
        (accepted,) = made.let_in()
        assert accepted.sock.recv(100) == b"\0\0\0\5plain"
        assert guest.hears() == b""
    with door(tmp_path / "enforcing", takes_plain=False) as made, capture_logs() as logs:
        guests = [made.comes(says=b"\0\0\0\5plain") for _ in range(3)]
        assert made.let_in() == []
        assert all(guest.is_out for guest in guests)
        said = [line["event"] for line in logs if line["log_level"] == "warning"]
        assert said == ["connection without TLS rejected"], "one line a minute"


def test_a5_after_the_first_byte_silence_is_closed_in_ten_seconds_and_garbage_at_once(
    tmp_path: Path,
) -> None:
    with door(tmp_path, takes_plain=True) as made:
        silent, began = made.comes(), made.comes(says=HELLO[:1])
        garbage = made.comes(says=b"\x16" + b"garbage that is no handshake at all")
        assert garbage.hears() is None or garbage.is_out, "perhaps with an alert before it"
        made.system.advance(TIME_MS - 2000)
        assert silent.hears() == b"" and began.hears() == b""
        with capture_logs() as logs:
            made.system.advance(4000)
        assert silent.is_out and began.is_out
        assert sorted(line["event"] for line in logs if line["log_level"] == "warning") == [
            "connection timed out: TLS handshake unfinished",
            "connection timed out: no data received",
        ]
        assert made.let_in() == [] and made.entrance.shaking_count == 0


@pytest.mark.parametrize(
    ("part_bytes", "why"),
    [(16_000, "more than 16384 bytes, and not over"), (1, "more than 128 records, and not over")],
)
def test_a_handshake_of_too_many_bytes_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int, why: str
) -> None:
    """OpenSSL takes a first message of 128 KiB; one of single bytes took 110 ms."""
    begun: list[TlsSocket] = []

    class Noted(TlsSocket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            begun.append(self)

    monkeypatch.setattr(entrance_module, "TlsSocket", Noted)
    hello = b"\x01\x01\x80\x00" + bytes(32_000 if part_bytes > 1 else 20_000)
    records = [hello[at : at + part_bytes] for at in range(0, len(hello), part_bytes)]
    with door(tmp_path, takes_plain=True) as made, capture_logs() as logs:
        says = b"".join(b"\x16\x03\x01" + len(part).to_bytes(2) + part for part in records)
        assert made.comes(says=says).is_out
        assert why in str(logs)
    assert [each.shaken_bytes <= HANDSHAKE_BYTES_MAX for each in begun] == [True]


def test_a7_concurrent_handshakes_of_one_address_are_limited(tmp_path: Path) -> None:
    with door(tmp_path, takes_plain=True) as made:
        began = [made.comes(says=HELLO[:6]) for _ in range(HOST_MAX + 20)]
        assert made.entrance.shaking_count == HOST_SHAKING_MAX
        assert [guest.is_out for guest in began] == [False] * HOST_MAX + [True] * 20
        made.comes("192.0.2.8", says=b"\0\0\0\5plain")
        assert len(made.let_in()) == 1, "others are served"
        made.comes("192.0.2.8", says=HELLO[:6])
        assert made.entrance.shaking_count == HOST_SHAKING_MAX + 1, "no other connection waits"
        made.system.advance(TIME_MS + 2000)
        assert all(guest.is_out for guest in began)
        assert made.entrance.shaking_count == 0


def test_a7_concurrent_handshakes_are_limited_and_further_ones_wait(tmp_path: Path) -> None:
    with door(tmp_path, takes_plain=True) as made:
        hosts = [f"198.51.{number // 250}.{number % 250}" for number in range(100)]
        began = [made.comes(hosts[number % 100], says=HELLO[:6]) for number in range(SHAKING_MAX)]
        waiting = made.comes("192.0.2.9", says=HELLO[:6])
        assert made.entrance.shaking_count == SHAKING_MAX
        assert not waiting.is_out
        began[0].says(b"garbage" * 10)
        assert made.entrance.shaking_count == SHAKING_MAX, "the one that waited has its place"
        made.system.advance(TIME_MS + 2000)
        assert made.entrance.shaking_count == 0


def test_a7_connections_beyond_the_limit_of_waiting_handshakes_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WAITING_MAX == 1024
    monkeypatch.setattr(entrance_module, "WAITING_MAX", 5)
    monkeypatch.setattr(entrance_module, "SHAKING_MAX", 2)
    with door(tmp_path, takes_plain=True) as made, capture_logs() as logs:
        guests = [made.comes(f"198.51.100.{number}", says=HELLO[:6]) for number in range(9)]
        assert [guest.is_out for guest in guests] == [False] * 7 + [True] * 2
        made.comes("192.0.2.8", says=b"\0\0\0\5plain")
        assert len(made.let_in()) == 1, "plain connections do not wait"
        assert times(logs, "TLS connection rejected: too many handshakes") == [1]


def test_a7_a_slot_is_released_by_the_handshake_not_by_its_timeout(
    tmp_path: Path,
) -> None:
    """Otherwise steps of closed connections would pile up before the one thread."""
    with door(tmp_path, takes_plain=True, handshakes=(thread := Told("busy")).address) as made:
        first = [made.comes(says=HELLO[:6]) for _ in range(HOST_SHAKING_MAX)]
        asked = thread.take()
        assert len(asked) == HOST_SHAKING_MAX
        for _ in range(3):
            made.system.advance(TIME_MS + 2000)
            later = made.comes(says=HELLO[:6])
        assert thread.take() == [] and made.entrance.shaking_count == HOST_SHAKING_MAX
        assert all(shake.is_over for shake in asked)
        for shake in asked:
            Handshakes(made.contexts).on_shake(shake)
        made.system.drain()
        assert all(guest.is_out for guest in first) and not later.is_out
        assert [shake.is_over for shake in thread.take()] == [False]
        assert made.entrance.shaking_count == 1


def test_a_step_of_a_timed_out_handshake_only_reports_that(tmp_path: Path) -> None:
    with door(tmp_path, takes_plain=True) as made:
        near, far = socketpair()
        with near, far:
            near.send(HELLO)
            told = Told("entrance")
            shake = StepHandshake(1, far, told.address, is_over=True)
            Handshakes(made.contexts).on_shake(shake)
            (shaken,) = told.take()
            assert shaken.sock is far and shaken.failure and not shaken.events
            assert far.recv(100) == HELLO


def test_a_late_reply_for_a_failed_negotiator_is_ignored_by_the_next(
    tmp_path: Path,
) -> None:
    with door(tmp_path, takes_plain=True, handshakes=(thread := Told("busy")).address) as made:
        made.comes(says=HELLO[:6])
        (before,) = thread.take()
        made.system.address("entrance").tell("unknown message")
        made.system.advance(5000)
        made.comes(says=HELLO[:6])
        (after,) = thread.take()
        assert after.number != before.number


def test_a_pending_connection_is_closed_if_the_negotiator_fails(tmp_path: Path) -> None:
    with door(tmp_path, takes_plain=True) as made:
        guest, other = made.comes(), made.comes(says=HELLO[:6])
        made.system.address("entrance").tell("unknown message")
        made.system.advance(5000)
        assert guest.is_out and other.is_out
        assert len(made.entrances) == 2, "started again"
        made.comes(says=b"\0\0\0\5plain")
        assert len(made.let_in()) == 1
