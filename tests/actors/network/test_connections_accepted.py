"""Tests of actors/network/connections.py: a connection to a TLS port has one slot.

It keeps the slot or gives it back. A38 of docs/security.md.
"""

from collections.abc import Callable
from pathlib import Path
from ssl import MemoryBIO

import pytest
from structlog.testing import capture_logs

from actors.network.limits import ConnectionSlots
from actors.network.tls_negotiator import TIME_MS, Handshakes
from tests.support.certificates import Certificates
from tests.support.doors import HELLO, Door, Guest, door
from tests.support.peers import Told

HOST = "192.0.2.7"


def is_free(places: ConnectionSlots) -> bool:
    """Whether the only one is."""
    if places.take(HOST) is not None:
        return False
    places.leave(HOST)
    return True


def test_silent_connection_takes_and_releases_a_slot(tmp_path: Path) -> None:
    places = ConnectionSlots(8, 5)
    with door(tmp_path, takes_plain=True, places=places) as made, capture_logs() as logs:
        silent = [made.comes() for _ in range(30)]
        assert [guest.is_out for guest in silent] == [False] * 5 + [True] * 25
        others = [made.comes("192.0.2.8") for _ in range(5)]
        assert [guest.is_out for guest in others] == [False] * 3 + [True] * 2
        assert places.refused == {"maxConnectionsPerAddress": 25, "maxConnections": 2}
        assert not made.comes("127.0.0.1").is_out, "this machine's own are not counted"
        made.system.advance(TIME_MS + 2000)
        assert not made.comes().is_out
    told = {line["event"] for line in logs if line["log_level"] == "warning"}
    assert {event for event in told if "connection rejected" in event} == {
        "connection rejected: maxConnections reached",
        "connection rejected: maxConnectionsPerAddress reached",
    }


def goes(_: Door, guest: Guest) -> None:
    guest.leaves()


def waits(made: Door, _: Guest) -> None:
    made.system.advance(TIME_MS + 2000)


def fails(made: Door, _: Guest) -> None:
    made.system.address("entrance").tell("unknown message")
    made.system.advance(5000)


@pytest.mark.parametrize("end", [goes, waits, fails])
@pytest.mark.parametrize("says", [b"", HELLO[:6]])
def test_a_slot_is_released_however_a_connection_ends(
    tmp_path: Path, end: Callable[[Door, Guest], None], says: bytes
) -> None:
    places = ConnectionSlots(1)
    with door(tmp_path, takes_plain=False, places=places) as made:
        for _ in range(2):
            guest = made.comes(says=says)
            assert not is_free(places)
            end(made, guest)
            assert guest.hears() is None or guest.is_out, "perhaps with an alert before it"
            assert is_free(places)
            assert made.comes(says=b"\0\0\0\5plain").is_out and is_free(places)
            made.comes(says=b"\x16" + b"garbage" * 9)
            assert is_free(places)
        made.comes(says=says)
    assert is_free(places), "after a stop, too"


def test_closed_connection_keeps_its_slot_until_its_handshake_returns(
    tmp_path: Path,
) -> None:
    places, thread = ConnectionSlots(1), Told("busy")
    asked = thread.address
    with door(tmp_path, takes_plain=True, handshakes=asked, places=places) as made:
        made.comes(says=HELLO[:6])
        made.system.advance(TIME_MS + 2000)
        assert not is_free(places), "its socket is open"
        (shake,) = thread.take()
        Handshakes(made.contexts).on_shake(shake)
        made.system.drain()
        assert is_free(places)


@pytest.mark.parametrize("speaks_tls", [True, False])
def test_an_accepted_connection_keeps_its_slot(tmp_path: Path, speaks_tls: bool) -> None:
    places = ConnectionSlots(2)
    with door(tmp_path, takes_plain=True, places=places) as made:
        guest = made.comes()
        if speaks_tls:
            incoming, outgoing = MemoryBIO(), MemoryBIO()
            calls = Certificates(tmp_path).calls()
            end = calls.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            guest.shakes(end, incoming, outgoing)
        else:
            guest.says(b"\0\0\0\5plain")
        (accepted,) = made.let_in()
        assert accepted.places is places
        made.system.advance(TIME_MS + 2000)
        assert [places.take(HOST) for _ in range(2)] == [None, "maxConnections"], "it has one"
        places.leave(HOST)
        accepted.on_undelivered("no receiver")
        accepted.on_undelivered("twice")
        assert [places.take(HOST) for _ in range(3)] == [None, None, "maxConnections"]


def test_a_connection_from_a_forbidden_address_is_closed_at_once(tmp_path: Path) -> None:
    with door(tmp_path, takes_plain=True, may_come=lambda host: host == HOST) as made:
        assert made.comes("192.0.2.8").is_out
        assert not made.comes(HOST).is_out
