"""Attempts of a hostile master on its slave: A37."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from select import EPOLLIN
from socket import socket, socketpair
from time import thread_time

import pytest
from structlog.testing import capture_logs

from actors.network.messages import Dialed
from actors.replication.ha_slave import RECEIVE_BYTES, same_bytes
from actors.replication.messages import AppendReplica
from actors.replication.put_replica import PutReplica
from protocol.ha import encode_transfer_head
from tests.support.brokers import STORE
from tests.support.forging import forged_record
from tests.support.replication import STEP_MS, Pair, end_of, fill, following, ready


class HostileMaster:
    """Answers the calls of a slave. `close` it."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._ends: list[tuple[socket, socket]] = []
        pair.connect = self._dialed  # type: ignore[method-assign]

    def _dialed(self) -> Dialed:
        ends = socketpair()
        for end in ends:
            end.setblocking(False)
        self._ends.append(ends)
        return Dialed(ends[0])

    def asked_from(self) -> int:
        """Return the offset at which the connected slave wants the log to start."""
        while not self._ends:
            self._pair.advance(STEP_MS)
        return int.from_bytes(self._ends[-1][1].recv(8), "big")

    def say(self, offset: int, body: bytes) -> None:
        near, far = self._ends[-1]
        far.send(encode_transfer_head(offset, len(body)) + body)
        ready(self._pair.slave, near, EPOLLIN)
        self._pair.settle()

    def close(self) -> None:
        for end in (end for ends in self._ends for end in ends):
            end.close()


@contextmanager
def hostile(pair: Pair) -> Iterator[HostileMaster]:
    """From now on the slave's master is another one."""
    master = HostileMaster(pair)
    for line in pair.lines:
        line.close_end(pair.master)
    yield master
    master.close()


def lines(logs: Sequence[Mapping[str, object]], event: str) -> list[str]:
    return [str(each.get("reason", "")) for each in logs if each["event"] == event]


@pytest.mark.parametrize("number", [-5, -(1 << 63), 1 << 62, (1 << 63) - 1])
def test_a37_an_impossible_first_queue_offset_is_a_one_sentence_error(number: int) -> None:
    """A bit flipped in a record's head does the same: no checksum covers it."""
    with capture_logs() as logs, following() as pair:
        fill(pair, 10)
        pair.advance(1000)
        end = end_of(pair.slave)
        with hostile(pair) as master:
            start = master.asked_from()
            own = pair.master.broker.store.commit_log.view(start, end - start).tobytes()
            master.say(start, own + forged_record(end, "New", queue_offset=number))
            pair.advance(2000)
            assert end_of(pair.slave) > end
        assert not lines(logs, "actor failed")
        (reason,) = lines(logs, "writes disabled")
        assert f"message {number} of queue 0 of topic 'New'" in reason
        pair.kill(pair.slave)
        queues = pair.slave.broker.store.consume_queues.names()
        assert pair.slave.system.live and ("New", 0) not in queues, "damage, at a start"


@pytest.mark.parametrize("body", [b"", bytes(1000)])
def test_a37_a_log_cannot_start_near_the_highest_offset(body: bytes) -> None:
    with capture_logs() as logs, following() as pair, hostile(pair) as master:
        assert master.asked_from() == 0
        master.say((1 << 63) - 65536, body)
        pair.advance(1000)
        assert pair.replica.is_empty and not lines(logs, "actor failed")
        assert "at 9223372036854710272" in lines(logs, "replication failed")[-1]


def test_a37_a_long_transfer_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """41,000 records in one transfer of 4 MB kept the loop of the slave for 121 ms."""
    sizes: list[int] = []
    write = PutReplica._write

    def noted(self: PutReplica, message: AppendReplica) -> bool:
        sizes.append(len(message.data))
        return write(self, message)

    monkeypatch.setattr(PutReplica, "_write", noted)
    store = replace(STORE, commit_log_file_bytes=1 << 20)
    with following(store=store) as pair, hostile(pair) as master:
        master.asked_from()
        body, (_, far) = bytes(400_000), master._ends[-1]
        rest = memoryview(encode_transfer_head(0, len(body)) + body)
        while rest:
            rest = rest[far.send(rest[:50_000]) :]
            ready(pair.slave, master._ends[-1][0], EPOLLIN)
            pair.settle()
        pair.advance(1000)
        assert pair.replica.received_offset == len(body)
    assert len(sizes) > 3 and max(sizes) <= RECEIVE_BYTES


def test_a37_the_first_difference_of_long_transfers_is_found_soon() -> None:
    """Byte by byte 4 MiB took 0.2 s."""
    random = Random(7)
    for _ in range(100):
        one = bytes(random.randrange(2) for _ in range(random.randrange(9)))
        other = bytes(random.randrange(2) for _ in one)
        equal = [at for at in range(len(one) + 1) if one[:at] == other[:at]]
        assert same_bytes(one, other) == equal[-1]
    began_s = thread_time()
    assert same_bytes(bytes(8 << 20), bytes((8 << 20) - 1) + b"x") == (8 << 20) - 1
    assert thread_time() - began_s < 0.1
