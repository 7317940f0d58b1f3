"""A simulated master, its slave, and the wire between them: slow, cut, or closed, by seed.

Each broker is a simulation of its own, with its own disk; their clocks advance together. The bytes
of a connection pass through the wire. It forwards as many at a time as its seed says, and keeps
them while it is cut. It does not report an end that died behind a cut.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from select import EPOLLIN, EPOLLOUT
from socket import socket, socketpair
from typing import Any

from actors.broker import Broker
from actors.engine.actor import Actor, handles
from actors.engine.histogram import SYNC_BOUNDS_MS, ClassCounts
from actors.network.connections import Accepted
from actors.network.messages import Dial, Dialed
from actors.network.request import Service
from actors.sending.flush_real_time import Flusher
from actors.sending.messages import Sync
from protocol.frame import RemotingCommand
from storage.config import StoreConfig
from storage.log.commit_log import CommitLog
from storage.replica.replica_log import ReplicaLog
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk

MASTER_ADDRESS = "192.0.2.1:10912"
SLAVE_ADDRESS = ("192.0.2.2", 40_000)
STEP_MS = 50
DIAL_MS = 1
CHUNK_BYTES = 70_000
TOPIC = "Topic"


@dataclass(slots=True)
class _Arrive:
    """The call has gone over the wire."""

    dial: Dial


class WireDialler(Actor):
    """Connects a slave through the wire."""

    def __init__(self, pair: "Pair") -> None:
        super().__init__()
        self._pair = pair

    @handles(Dial)
    def on_dial(self, message: Dial) -> None:
        self.after(DIAL_MS, _Arrive(message))

    @handles(_Arrive)
    def on_arrive(self, message: _Arrive) -> None:
        message.dial.reply_to.tell(self._pair.connect())


@dataclass(slots=True)
class _Turn:
    """The disk has come to this sync."""

    sync: Sync


class SlowFlusher(Flusher):
    """The disk takes its time, now and then much of it."""

    def __init__(self, commit_log: CommitLog, delays_ms: Sequence[int], random: Random) -> None:
        super().__init__(commit_log, ClassCounts(SYNC_BOUNDS_MS))
        self._delays_ms, self._random = delays_ms, random

    @handles(Sync)
    def on_sync(self, message: Sync) -> None:
        self.after(self._random.choice(self._delays_ms), _Turn(message))

    @handles(_Turn)
    def on_turn(self, message: _Turn) -> None:
        super().on_sync(message.sync)


@dataclass(eq=False)
class Way:
    """One direction of a connection."""

    source: socket
    target: socket
    end: socket
    """Socket with an owner that is notified of received bytes."""
    end_of: SimulatedBroker
    other_end: socket
    other_end_of: SimulatedBroker
    held: bytearray = field(default_factory=bytearray)
    is_over: bool = False
    is_closed: bool = False

    def move(self, limit: int) -> bool:
        """Takes what was written and hands on up to `limit` bytes; whether anything happened.

        With 0 nothing is taken: the sender's buffer fills up.
        """
        moved = False
        while limit and not self.is_over:
            try:
                data = self.source.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            moved = True
            self.is_over = not data
            self.held += data
            ready(self.other_end_of, self.other_end, EPOLLOUT)
        if limit and self.held and not self.is_closed:
            try:
                sent = self.target.send(self.held[:limit])
            except BlockingIOError:
                sent = 0
            except OSError:
                sent = len(self.held)
            del self.held[:sent]
            moved = moved or sent > 0
            ready(self.end_of, self.end, EPOLLIN)
        if limit and self.is_over and not self.held and not self.is_closed:
            self.is_closed = moved = True
            self.target.close()
            ready(self.end_of, self.end, EPOLLIN)
        return moved


def ready(made: SimulatedBroker, sock: socket, events: int) -> None:
    """The broker may read or write, if it has not closed the socket."""
    if sock.fileno() >= 0 and made.system.live:
        made.system.loop.make_ready(sock, events)


@dataclass
class Line:
    """One connection: four sockets, two ways."""

    sockets: tuple[socket, ...]
    ways: tuple[Way, Way]

    def close_end(self, made: SimulatedBroker) -> None:
        """The broker is dead: the kernel closes its socket."""
        for way in self.ways:
            if way.end_of is made:
                way.end.close()

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()

    @property
    def is_over(self) -> bool:
        return all(way.is_over and way.is_closed for way in self.ways)


class Pair:
    """A master and a slave. `close` it."""

    def __init__(
        self,
        seed: int,
        *,
        master_role: str = "ASYNC_MASTER",
        store: StoreConfig = STORE,
        slave_store: StoreConfig | None = None,
        slave_actors: Mapping[str, Callable[[Broker], Actor]] | None = None,
        sync_delays_ms: Sequence[int] = (),
        **settings: Any,
    ) -> None:
        self.random = Random(seed)
        self.is_cut = False
        self.lines: list[Line] = []
        flushers: dict[str, Callable[[Broker], Actor]] = {}
        if sync_delays_ms:
            flushers["flusher"] = lambda made: SlowFlusher(
                made.store.commit_log, sync_delays_ms, self.random
            )
        self.master = SimulatedBroker(
            seed,
            FakeDisk(),
            config=replace(BROKER, broker_role=master_role, **settings),
            store_config=store,
            instead=flushers,
        )
        self.slave = SimulatedBroker(
            seed + 1,
            FakeDisk(),
            config=replace(
                BROKER,
                broker_role="SLAVE",
                broker_id=1,
                ha_master_address=MASTER_ADDRESS,
                **settings,
            ),
            store_config=slave_store or store,
            instead={"ha_dial": lambda _: WireDialler(self), **flushers, **(slave_actors or {})},
        )

    # --- the wire

    def connect(self) -> Dialed:
        """A new connection from the slave to the master."""
        if self.is_cut or not self.master.system.live:
            return Dialed(None, "no answer")
        slave_end, near = socketpair()
        far, master_end = socketpair()
        sockets = (slave_end, near, far, master_end)
        for sock in sockets:
            sock.setblocking(False)
        to_master = Way(near, far, master_end, self.master, slave_end, self.slave)
        to_slave = Way(far, near, slave_end, self.slave, master_end, self.master)
        self.lines.append(Line(sockets, (to_master, to_slave)))
        accepted = Accepted(master_end, SLAVE_ADDRESS, Service({}))
        self.master.system.address("ha_master").tell(accepted)
        return Dialed(slave_end)

    def cut(self) -> None:
        """Drop everything without a notice."""
        self.is_cut = True

    def heal(self) -> None:
        self.is_cut = False

    def _move(self) -> bool:
        moved = False
        for line in self.lines:
            if line.is_over:
                continue
            for way in line.ways:
                limit = 0 if self.is_cut else self.random.randint(1, CHUNK_BYTES)
                moved = way.move(limit) or moved
        return moved

    # --- time

    def settle(self) -> None:
        """Everything that can happen without time passing happens."""
        while True:
            for made in (self.master, self.slave):
                if made.system.live:
                    made.system.drain()
            if not self._move():
                return

    def stir(self, rounds: int) -> None:
        """Some of what can happen without time passing happens: the middle of everything."""
        for _ in range(rounds):
            for made in (self.master, self.slave):
                steps = count(self.random.randint(-20, 0))
                with suppress(TimeoutError):  # nothing is left to do
                    made.system.run_until(lambda: next(steps) >= 0, 0)  # noqa: B023
            self._move()

    def advance(self, ms: float) -> None:
        """Advance both clocks."""
        left_ms = ms
        self.settle()
        while left_ms > 0:
            for made in (self.master, self.slave):
                if made.system.live:
                    made.system.advance(min(left_ms, STEP_MS))
            left_ms -= STEP_MS
            self.settle()

    # --- the ends

    def die(self, made: SimulatedBroker, disk: FakeDisk) -> None:
        """A broker is dead; `disk` is what it finds when it starts."""
        made.crash()
        for line in self.lines:
            line.close_end(made)
        made.disk = disk

    def kill(self, made: SimulatedBroker) -> None:
        """Kill its process and restart it: written data stays."""
        assert isinstance(made.disk, FakeDisk)
        self.die(made, made.disk.killed())
        self.restart(made)

    def cut_power(self, made: SimulatedBroker) -> None:
        """Power is cut and comes again: what it synced is there."""
        assert isinstance(made.disk, FakeDisk)
        self.die(made, made.disk.crashed(self.random.randrange(1 << 30)))
        self.restart(made)

    def wipe(self, made: SimulatedBroker) -> None:
        """Lose its disk."""
        self.die(made, FakeDisk())
        self.restart(made)

    def restart(self, made: SimulatedBroker) -> None:
        """Starts a broker that is dead."""
        made.start_ms = (self.master if made is self.slave else self.slave).system.clock.now_ms()
        made.start()

    def stop(self, made: SimulatedBroker) -> None:
        """A clean stop, with the wire at work meanwhile."""
        made.stop()
        for line in self.lines:
            line.close_end(made)

    def close(self) -> None:
        for made in (self.slave, self.master):
            if made.system.live:
                made.stop()
        for line in self.lines:
            line.close()

    # --- what is to hold

    @property
    def replica(self) -> ReplicaLog:
        return self.slave.broker.replica_log

    def send(self, body: bytes = b"body", **options: Any) -> list[RemotingCommand]:
        """A send to the master; the answer comes into the list once time has passed."""
        return self.master.start_send(body, **options)

    def assert_prefix(self) -> None:
        """Every byte that the slave has is the master's."""
        log, received = self.slave.broker.store.commit_log, self.replica.received_offset
        ours = bytes_of(log, log.min_offset(), received)
        master = self.master.broker.store.commit_log
        assert received <= master.end_offset, (
            f"the slave is ahead by {received - master.end_offset}"
        )
        start = max(log.min_offset(), master.min_offset())
        theirs = bytes_of(master, start, received)
        assert ours[start - log.min_offset() :] == theirs

    def assert_equal(self) -> None:
        """The slave has everything."""
        self.assert_prefix()
        end = self.master.broker.store.commit_log.end_offset
        assert self.slave.broker.store.commit_log.end_offset == end


def bytes_of(log: CommitLog, start: int, end: int) -> bytes:
    """A part of a log, over the borders of files."""
    pieces: list[bytes] = []
    for file in log.queue.spanning(start, end):
        first = max(start, file.first_offset) - file.first_offset
        last = min(end, file.end_offset) - file.first_offset
        pieces.append(file.file.pread(last - first, first))
    return b"".join(pieces)


@contextmanager
def following(**options: Any) -> Iterator[Pair]:
    """A pair with a topic, the slave connected."""
    pair = Pair(7, **options)
    pair.master.make_topic(TOPIC)
    pair.advance(100)
    try:
        yield pair
    finally:
        pair.close()


def fill(pair: Pair, count: int, body_bytes: int = 1000) -> None:
    for number in range(count):
        pair.send(b"%d " % number + bytes(body_bytes), topic=TOPIC, queue_id=number % 4)
    pair.settle()


def end_of(made: SimulatedBroker) -> int:
    return made.broker.store.commit_log.end_offset
