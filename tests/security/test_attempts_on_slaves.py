"""Attempts of a hostile master on its slave: A37."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from select import EPOLLIN
from socket import socket, socketpair

import pytest
from structlog.testing import capture_logs

from actors.network.messages import Dialed
from protocol.ha import encode_transfer_head
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
