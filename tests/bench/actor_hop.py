"""Cost of a message between two actors: `python -m tests.bench.actor_hop` prints a table.

CPU is that of the whole process, both ends, per message. The handler only counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from time import perf_counter, process_time

from actors.engine.actor import Actor, BatchEnd, handles
from actors.engine.actor_address import ActorAddress, Question, Reply
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from storage.files.disk import RealDisk

MESSAGES = 200_000
ROUNDS = 5
ASKS = 2_000
CHUNK = 64


@dataclass(slots=True)
class Ping:
    """Nothing but a message."""


@dataclass(slots=True)
class Send:
    """Tell `to` the same message `count` times."""

    to: ActorAddress
    count: int


@dataclass(slots=True)
class Expect:
    """Set `reached` after `count` pings."""

    count: int
    reached: Event


@dataclass(slots=True)
class Echo(Question):
    """Answer at once."""

    reply: Reply[None]


class Counter(Actor):
    """Actor that counts pings."""

    def __init__(self) -> None:
        super().__init__()
        self._left = 0
        self._reached = Event()

    @handles(Ping)
    def ping(self, _: Ping) -> None:
        self._left -= 1
        if not self._left:
            self._reached.set()

    @handles(Expect)
    def expect(self, message: Expect) -> None:
        self._left = message.count
        self._reached = message.reached

    @handles(Echo)
    def echo(self, message: Echo) -> None:
        message.reply(None)

    @handles(Send)
    def send(self, message: Send) -> None:
        # in chunks, as a connection tells what one read brought
        tell = message.to.tell
        ping = Ping()
        for _ in range(min(CHUNK, message.count)):
            tell(ping)
        message.count -= CHUNK
        if message.count > 0:
            self.address.tell(message)


class BatchCounter(Counter):
    """Counts pings, and wants to know the end of each batch."""

    @handles(BatchEnd)
    def batch_end(self, _: BatchEnd) -> None:
        pass


def measure(
    system: ActorSystem, to: ActorAddress, begin: Callable[[], None]
) -> tuple[float, float]:
    """CPU and wall µs a message, the best of some rounds."""
    best = (float("inf"), float("inf"))
    for _ in range(ROUNDS):
        reached = Event()
        to.tell(Expect(MESSAGES, reached))
        system.ask(to, Echo).result(10)
        wall, cpu = perf_counter(), process_time()
        begin()
        assert reached.wait(60)
        spent = (process_time() - cpu, perf_counter() - wall)
        best = min(best, (spent[0] / MESSAGES * 1e6, spent[1] / MESSAGES * 1e6))
    return best


def flood(to: ActorAddress) -> None:
    tell = to.tell
    ping = Ping()
    for _ in range(MESSAGES):
        tell(ping)


def main() -> None:
    system = ActorSystem.real(disk=RealDisk())
    loop_a, loop_b, batching, thread = map(
        system.address, ("loop a", "loop b", "batching", "thread")
    )
    system.start(
        ChildSpec("loop a", lambda _: Counter()),
        ChildSpec("loop b", lambda _: Counter()),
        ChildSpec("batching", lambda _: BatchCounter()),
        ChildSpec("thread", lambda _: BatchCounter(), where="thread"),
    )
    print(f"{'a tell, per message':44}{'CPU µs':>8}{'wall µs':>9}")
    rows: list[tuple[str, ActorAddress, Callable[[], None]]] = [
        ("loop → loop, 64 at a time", loop_b, lambda: loop_a.tell(Send(loop_b, MESSAGES))),
        ("loop → loop with BatchEnd", batching, lambda: loop_a.tell(Send(batching, MESSAGES))),
        ("loop → thread", thread, lambda: loop_a.tell(Send(thread, MESSAGES))),
        ("thread → loop", loop_b, lambda: thread.tell(Send(loop_b, MESSAGES))),
        ("main thread → loop, without a pause", loop_b, lambda: flood(loop_b)),
        ("main thread → thread, without a pause", thread, lambda: flood(thread)),
    ]
    for name, to, begin in rows:
        cpu_us, wall_us = measure(system, to, begin)
        print(f"{name:44}{cpu_us:8.2f}{wall_us:9.2f}")
    for name, to in (("an ask of the loop, idle", loop_a), ("an ask of a thread, idle", thread)):
        wall, cpu = perf_counter(), process_time()
        for _ in range(ASKS):
            system.ask(to, Echo).result(10)
        cpu_us = (process_time() - cpu) / ASKS * 1e6
        print(f"{name:44}{cpu_us:8.1f}{(perf_counter() - wall) / ASKS * 1e6:9.1f}")
    system.stop()


if __name__ == "__main__":
    main()
