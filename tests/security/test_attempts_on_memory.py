"""Attempts to fill the memory of a broker or to keep its connections busy: A1 to A4, A38 to A40.

At reduced counts, on the virtual clock; at full counts against a process: test_attempts_in_full.py.
The table of them all: docs/security.md.
"""

import tracemalloc
from collections import Counter
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.children.tls import TlsPortSpec, door_children
from actors.engine.messages import AskFigures
from actors.network import limits as limits_module
from actors.network.connections import Connections
from actors.network.limits import half_frame_ms
from actors.network.messages import ConnectionFigures
from actors.network.tls_negotiator import TIME_MS
from actors.pulling import held_pulls
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import FrameError
from protocol.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX, RemotingCommand
from protocol.headers.client import QueueHeader
from protocol.stream import Stream
from tests.support.brokers import BROKER, SimulatedBroker, pull_command, send_command
from tests.support.certificates import Certificates
from tests.support.sockets import HOST, PairedLine, frames_of, paired_lines
from tests.support.told import times

STRANGER, OTHER = "198.51.100.1", "198.51.100.2"


def question() -> RemotingCommand:
    return RemotingCommand(RequestCode.GET_MAX_OFFSET, QueueHeader("Topic", 0).encode())


def broker() -> SimulatedBroker:
    made = SimulatedBroker(1)
    made.make_topic()
    return made


def is_served(line: PairedLine) -> bool:
    line.send(question())
    return [answer.code for answer in line.receive_now()] == [0]


def connections_of(made: SimulatedBroker) -> Connections:
    (found,) = [each for each in made.system.live if isinstance(each, Connections)]
    return found


def events(logs: list[MutableMapping[str, Any]]) -> Counter[str]:
    """Return the rate-limited events of a minute; simulated time makes actors late at times."""
    found = Counter(str(entry["event"]) for entry in logs if entry["log_level"] == "warning")
    del found["actor stop overdue"]
    return found


def half_frame(total_bytes: int, part_bytes: int) -> bytes:
    return (pack(">iI", total_bytes - 4, 100) + bytes(part_bytes))[:part_bytes]


def test_a1_a_byte_a_minute_does_not_count_as_traffic() -> None:
    made = broker()
    frame = frames_of([question()])
    with capture_logs() as logs, paired_lines(made, 21, STRANGER) as (neighbour, *slow):
        for byte in range(5):
            for line in slow:
                if not line.is_closed():
                    line.send_bytes(frame[byte : byte + 1])
            assert is_served(neighbour)
            made.system.advance(20_000)
        assert all(line.is_closed() for line in slow)
        assert is_served(neighbour)
        assert connections_of(made).count == 1
    assert events(logs) == {"frame timed out": 1}


def test_a1_a_long_frame_gets_time_in_proportion_to_its_length() -> None:
    made = broker()
    size = 4 << 20
    with paired_lines(made, 2, STRANGER) as (slow, stuck):
        for line in (slow, stuck):
            line.send_bytes(half_frame(size, 100))
        for _ in range(8):
            made.system.advance(half_frame_ms(size) / 10)
            slow.send_bytes(bytes(1000))
        assert not slow.is_closed() and not stuck.is_closed()
        made.system.advance(half_frame_ms(size) / 2)
        assert slow.is_closed() and stuck.is_closed()


def test_a1_complete_frames_count_as_traffic() -> None:
    """Each read ends within a frame, as a busy client's do: none of them takes long."""
    made = broker()
    frame = frames_of([question()])
    with paired_lines(made, 1, STRANGER) as (line,):
        line.send_bytes(frame[:10])
        for _ in range(20):
            made.system.advance(10_000)
            line.send_bytes(frame[10:] + frame[:10])
            assert len(line.receive_now()) == 1


def test_a2_partial_frames_are_limited_in_total_and_per_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits_module, "HALF_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(limits_module, "HALF_BYTES_OF_ADDRESS_MAX", 1 << 18)
    made = broker()
    half = half_frame(FRAME_BYTES_MAX, 60_000)
    with capture_logs() as logs, paired_lines(made, 1) as lines:
        (neighbour,) = lines
        lines += [PairedLine(made, STRANGER) for _ in range(30)]
        for line in lines[1:]:
            line.send_bytes(half)
        held = connections_of(made).limits.half
        assert held.total_bytes == 4 * len(half)
        assert [line.is_closed() for line in lines[1:]] == [True] * 26 + [False] * 4
        for number in range(40):
            lines.append(PairedLine(made, f"198.51.100.{number + 2}"))
            lines[-1].send_bytes(half)
            assert held.total_bytes <= 1 << 20
        assert is_served(neighbour)
        for line in lines[1:]:
            line.close()
            line.wind()
        made.system.advance(1000)  # they are ended a few at a time
        assert held.total_bytes == 0
    assert events(logs) == {"byte quota exceeded: incomplete frames": 1}


def test_a2_a_completed_frame_leaves_the_quota() -> None:
    made = broker()
    frame = frames_of([send_command(bytes(60_000))])
    with paired_lines(made, 1, STRANGER) as (line,):
        for _ in range(3):
            line.send_bytes(frame[:50_000])
            assert connections_of(made).limits.half.total_bytes == 50_000
            line.send_bytes(frame[50_000:])
            assert [answer.code for answer in line.receive_now()] == [0]
            assert connections_of(made).limits.half.total_bytes == 0


@pytest.mark.trial(short=1, long=3)
def test_a3_a_frame_in_two_byte_pieces_takes_bounded_memory(
    seed: int, tell: Callable[[str], None]
) -> None:
    """One of 128 KiB in `make test`, one of 4 and one of 16 MiB in `make trials`."""
    size = (1 << 17, 1 << 22, FRAME_BYTES_MAX)[seed % 3]
    frame = half_frame(size, size)
    stream = Stream()
    stream.receive(frame[:8])
    tracemalloc.start()
    try:
        for at in range(8, size - 2, 2):
            stream.receive(frame[at : at + 2])
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stream.half_bytes > size - 4
    tell(f"A3: a frame of {size >> 10} KiB in pieces of 2 bytes, at most {most_bytes >> 10} KiB")
    assert most_bytes <= 2 * size


def test_a3_pieces_of_any_length_are_one_frame() -> None:
    frame = frames_of([send_command(bytes(range(256)) * 100)])
    stream = Stream()
    found = []
    at, size = 0, 1
    while at < len(frame):
        found += stream.receive(frame[at : at + size])
        at, size = at + size, (size * 7 + 3) % 9000 + 1
    (command,) = found
    assert isinstance(command, RemotingCommand)
    assert command.body == bytes(range(256)) * 100


@pytest.mark.parametrize(
    "head",
    [
        pack(">iI", 0, 0),
        pack(">iI", 3, 0),
        pack(">iI", -1, 0),
        pack(">iI", -(1 << 31), 0),
        pack(">iI", (1 << 31) - 1, 10),
        pack(">iI", 100, 101),
        pack(">iI", FRAME_BYTES_MAX - 4, HEADER_BYTES_MAX + 1),
    ],
    ids=["0", "3", "-1", "-2^31", "2^31-1", "header over frame", "header over 1 MiB"],
)
def test_a4_an_invalid_length_is_refused_after_eight_bytes(head: bytes) -> None:
    (event,) = Stream().receive(head)
    assert isinstance(event, FrameError)
    made = broker()
    with paired_lines(made, 2, STRANGER) as (line, neighbour):
        line.send_bytes(head)
        assert line.is_closed()
        assert connections_of(made).limits.half.total_bytes == 0
        assert is_served(neighbour)


def test_a38_connections_are_limited_per_address_and_in_total() -> None:
    config = replace(BROKER, connections_max=8, connections_of_address_max=5)
    made = SimulatedBroker(1, config=config)
    made.make_topic()
    with capture_logs() as logs, paired_lines(made, 30, STRANGER) as lines:
        assert [line.is_closed() for line in lines] == [False] * 5 + [True] * 25
        lines += [PairedLine(made, OTHER) for _ in range(10)]
        assert [line.is_closed() for line in lines[30:]] == [False] * 3 + [True] * 7
        lines += [PairedLine(made) for _ in range(20)]
        assert all(map(is_served, lines[40:])), "this machine's own are not counted"
        lines[0].close()
        lines[0].wind()
        lines.append(PairedLine(made, OTHER))
        assert is_served(lines[-1])
    assert events(logs) == {
        "connection rejected: maxConnectionsPerAddress reached": 1,
        "connection rejected: maxConnections reached": 1,
    }


def test_a38_silent_connections_at_a_tls_port_are_counted(tmp_path: Path) -> None:
    files = Certificates(tmp_path).files()
    config = replace(
        BROKER,
        connections_max=8,
        connections_of_address_max=5,
        tls_server_certificate=files.cert_path,
        tls_server_key=files.key_path,
    )
    made = SimulatedBroker(1, config=config)
    made.make_topic()
    with capture_logs() as logs, paired_lines(made, 0) as lines:
        system, places = made.system, made.broker.places
        door = TlsPortSpec("entrance", system.address("connections"), config.port_mode, places)
        system.start(*door_children(system, made.broker.tls, (door,), "handshakes"))

        def comes(host: str, number: int) -> list[PairedLine]:
            lines.extend(PairedLine(made, host, "entrance") for _ in range(number))
            return lines[-number:]

        strangers = comes(STRANGER, 30)
        assert [line.is_closed() for line in strangers] == [False] * 5 + [True] * 25
        others = comes(OTHER, 10)
        assert [line.is_closed() for line in others] == [False] * 3 + [True] * 7
        for line in (others[0], *comes(HOST, 1)):  # this machine's own are not counted
            line.send(question())
            line.wind()  # it is let in, and then read
            assert len(line.receive_now()) == 1
        assert [line.is_closed() for line in comes(OTHER, 1)] == [True], "still eight"
        others[0].close()
        others[0].wind()
        made.system.advance(TIME_MS + 2000)  # and all who said nothing are gone
        lines_again = [*comes(STRANGER, 6), *comes(OTHER, 4)]
        assert [line.is_closed() for line in lines_again].count(True) == 2
        asked = made.system.ask(connections_of(made).address, AskFigures)
        figures: ConnectionFigures = asked.result(1)
        assert figures.refused == {
            "maxConnectionsPerAddress": 26,
            "maxConnections": 9,
        }
    assert events(logs) == {
        "connection rejected: maxConnectionsPerAddress reached": 1,
        "connection rejected: maxConnections reached": 1,
        "connection timed out: no data received": 1,
    }


def test_a39_unread_answers_are_limited_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "UNSENT_BYTES_OF_ALL_MAX", 3 << 20)
    made = broker()
    for _ in range(12):
        made.send(bytes(60_000))
    with capture_logs() as logs, paired_lines(made, 13, STRANGER) as lines:
        neighbour, *greedy = lines
        unsent = connections_of(made).limits.unsent
        for line in greedy:
            line.send(*[pull_command() for _ in range(4)])  # a quarter of a megabyte each
            assert unsent.total_bytes <= 3 << 20
        is_open = [not connection_is_gone(made, line) for line in greedy]
        assert is_open == sorted(is_open), "who has taken nothing for longest is closed first"
        assert 3 <= sum(is_open) < len(greedy)
        assert is_served(neighbour)
    assert events(logs) == {"byte quota exceeded: unsent answers": 1}


def connection_is_gone(made: SimulatedBroker, line: PairedLine) -> bool:
    live = connections_of(made)._live.values()
    return line.local not in [connection.remote for connection in live]


def test_a40_held_pulls_of_one_connection_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_pulls, "HELD_OF_PEER_MAX", 50)
    made = broker()
    with paired_lines(made, 2, STRANGER) as (greedy, neighbour):
        with capture_logs() as logs:
            greedy.send(*[pull_command(hold_ms=30_000) for _ in range(80)])
            answers = greedy.receive_now()
            assert [answer.code for answer in answers] == [ResponseCode.PULL_NOT_FOUND] * 30
            assert times(logs, "held pull limit reached") == [1]
        (first,) = [each for each in logs if each["event"] == "held pull limit reached"]
        assert (first["peer"], first["held"]) == (greedy.local, 50)
        neighbour.send(pull_command(hold_ms=30_000))
        assert neighbour.receive_now() == []
        made.send(b"wakes them all")
        greedy.wind()
        assert len(greedy.receive_now()) == 50
        neighbour.wind()
        assert len(neighbour.receive_now()) == 1
        greedy.send(*[pull_command(1, hold_ms=30_000) for _ in range(50)])
        assert greedy.receive_now() == [], "there is room again"
        with capture_logs() as logs:
            made.system.advance(60_000)
        assert times(logs, "held pull limit reached") == [29]
