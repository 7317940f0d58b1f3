"""Simulation of an actor system: one thread, virtual time, and an order drawn from a seed.

Messages from one actor to another arrive in order. Beyond that any order is possible, as between
threads. The size of each batch is drawn, too. Actors with a thread of their own take part in the
same way. The same seed gives the same run; the `repr` of a system shows the seed.

A simulated system has the interface of a real one, and runs only while it is wound: by `advance`,
`run_until`, `drain`, `result`, `start` and `stop`.

Tests watch sockets of their own; `make_ready` marks one of them as ready.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from random import Random
from select import EPOLLIN, EPOLLOUT
from threading import Event
from typing import ClassVar, Final, TypeAlias

from actors.engine.actor_address import ActorAddress, Receiver, enter_loop, leave_loop
from actors.engine.dispatchers import Begin, Stepper
from actors.engine.inbox import Item, refuse
from actors.engine.interfaces import HasFileno, System
from actors.engine.messages import BATCH_END, BatchEnd
from actors.engine.system import ActorSystem, GiveUp
from actors.engine.timer import TimerHandle
from storage.files.disk import Disk

STEPS_MAX = 10_000_000
"""Messages without a pause in virtual time, after which actors are taken to chase each other."""


KEPT: Final = "kept"
"""The sender of mail that was kept for an actor while it was down: it goes first."""

Sender: TypeAlias = ActorAddress | str | None


class SimulatedClock:
    """Wall and monotonic time of a simulation; only its scheduler winds it."""

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._elapsed_ms = 0.0

    def now_ms(self) -> int:
        return self._start_ms + int(self._elapsed_ms)

    def monotonic_ms(self) -> float:
        return self._elapsed_ms

    def wind_to(self, monotonic_ms: float) -> None:
        assert monotonic_ms >= self._elapsed_ms, "time does not go backwards"
        self._elapsed_ms = monotonic_ms

    def set_wall(self, now_ms: int) -> None:
        """Move the wall clock alone, backwards too."""
        self._start_ms = now_ms - int(self._elapsed_ms)


class Draw:
    """Numbers from a seed: those of Random.randrange in a third of its time."""

    def __init__(self, seed: int) -> None:
        self._bits = Random(seed).getrandbits

    def below(self, end: int) -> int:
        """Return a number from 0 to `end` - 1."""
        width = end.bit_length()
        number = self._bits(width)
        while number >= end:
            number = self._bits(width)
        return number


class Post:
    """Mail in one channel for each pair of sender and receiver."""

    def __init__(self) -> None:
        self.asleep = False
        self._crashed = False
        self.sender: ActorAddress | None = None
        """Actor with the running handler; None outside of handlers."""
        self.channels: dict[ActorAddress, dict[Sender, deque[object]]] = {}

    def append(self, item: Item) -> None:
        address, message = item
        channels = self.channels.setdefault(address, {})
        channels.setdefault(self.sender, deque()).append(message)

    def wake(self) -> None:
        """After the end: refuse messages, or lose them if the end was a crash."""
        channels, self.channels = self.channels, {}
        for address, channel in channels.items() if not self._crashed else ():
            for messages in channel.values():
                for message in messages:
                    refuse(message, f"{address.name} has stopped")

    def end(self, *, crashed: bool) -> None:
        self._crashed = crashed
        self.asleep = True
        self.wake()

    def waiting_count(self, address: ActorAddress) -> int:
        return sum(map(len, self.channels.get(address, {}).values()))

    def pop(self, address: ActorAddress, draw: "Draw") -> object:
        """Return the next message of one of the senders."""
        channels = self.channels[address]
        sender = KEPT if KEPT in channels else [*channels][draw.below(len(channels))]
        channel = channels[sender]
        message = channel.popleft()
        if not channel:
            del channels[sender]
            if not channels:
                del self.channels[address]
        return message

    def take(self, address: ActorAddress) -> list[object]:
        """Return all messages that wait for one actor, sender by sender."""
        channels = self.channels.pop(address, {})
        return [message for channel in channels.values() for message in channel]

    def put_first(self, address: ActorAddress, messages: list[object]) -> None:
        """Put back kept messages, before those that their senders have sent since."""
        if messages:
            channels = self.channels.setdefault(address, {})
            channels.setdefault(KEPT, deque()).extendleft(reversed(messages))


class Simulation(Stepper):
    """The scheduler of a simulated system."""

    def __init__(self, system: System, clock: SimulatedClock, seed: int) -> None:
        self._post = Post()
        super().__init__(system, self._post, "simulation")
        self.seed = seed
        self.step_count = 0
        self._clock = clock
        self._draw = Draw(seed)
        self._ready: dict[int, int] = {}
        self._events: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Simulation seed={self.seed} at {self._clock.monotonic_ms():.0f} ms>"

    # --- time

    def run_until(self, predicate: Callable[[], bool], limit_ms: float = 60_000) -> None:
        """Run, winding the clock from timer to timer, until `predicate` holds.

        It is asked after every step. Raises TimeoutError, with the seed, after `limit_ms` of
        virtual time.
        """
        limit = self._clock.monotonic_ms() + limit_ms
        while not predicate():
            if self.step():
                continue
            due_ms = self.timers.next_due_ms()
            if due_ms is None or due_ms > limit:
                self._clock.wind_to(limit)
                raise TimeoutError(f"not within {limit_ms} ms: {self.system!r}")
            self._wind_to(due_ms)

    def advance(self, ms: float) -> None:
        """Run waiting work, then let `ms` pass and tell every timer at its time."""
        target_ms = self._clock.monotonic_ms() + ms
        self.drain()
        while (due_ms := self.timers.next_due_ms()) is not None and due_ms <= target_ms:
            self._wind_to(due_ms)
            self.drain()
        self._clock.wind_to(target_ms)

    def drain(self) -> None:
        """Run until nothing is waiting; no time passes.

        Raises RuntimeError after STEPS_MAX steps.
        """
        last = self.step_count + STEPS_MAX
        while self.step():
            if self.step_count > last:
                raise RuntimeError(f"{STEPS_MAX} steps and no end: {self.system!r}")

    def _wind_to(self, due_ms: float) -> None:
        self._clock.wind_to(max(due_ms, self._clock.monotonic_ms()))
        self.timers.tell_due(self._clock.monotonic_ms())

    def arm(self, timer: TimerHandle) -> None:
        self.timers.arm(timer)

    # --- mail

    def take_waiting(self, address: ActorAddress) -> list[object]:
        return self._post.take(address)

    def put_first(self, address: ActorAddress, messages: list[object]) -> None:
        self._post.put_first(address, messages)

    def depths(self) -> Counter[ActorAddress]:
        count = self._post.waiting_count
        return Counter({address: count(address) for address in self._post.channels})

    def _on_begin(self, message: Begin) -> None:
        self._post.sender = message.actor.address  # whatever on_start tells, the actor tells
        super()._on_begin(message)

    handlers: ClassVar[Mapping[type, Callable[..., object]]] = {
        **Stepper.handlers,
        Begin: _on_begin,
    }

    @property
    def here(self) -> bool:
        return True

    def step(self) -> bool:
        """Serve one socket, or one actor a batch; return False if there is nothing to do."""
        choices: list[ActorAddress | int] = [*self._post.channels]
        if self._ready:
            choices += self._ready_fds()
        if not choices:
            return False
        self.step_count += 1
        choice = choices[self._draw.below(len(choices))]
        enter_loop()
        try:
            if isinstance(choice, ActorAddress):
                self._serve_batch(choice)
            else:
                self._serve_socket(choice)
            if self._stopping:
                self._stop_the_ready()
        finally:
            leave_loop()
            self._post.sender = None
        return True

    def _serve_batch(self, address: ActorAddress) -> None:
        self._post.sender = address
        receiver = address.receiver
        for _ in range(1 + self._draw.below(self._post.waiting_count(address))):
            if not self._deliver(address, receiver, self._post.pop(address, self._draw)):
                return
            if address.receiver is not receiver:
                return  # it has ended, or begun
            if address not in self._post.channels:
                break
        if receiver.wants_batch_end:
            self._deliver(address, receiver, BATCH_END)

    def _deliver(self, address: ActorAddress, receiver: Receiver, message: object) -> bool:
        try:
            receiver.handlers[type(message)](receiver, message)
        except BaseException as error:
            self._failed(receiver, error, message)
            return False
        if type(message) is not BatchEnd:
            address.handled += 1
        return True

    def _stop_the_ready(self) -> None:
        for actor in tuple(self._stopping):
            self._post.sender = actor.address
            self._stop_if_ready(actor)

    # --- sockets

    def make_ready(self, sock: HasFileno, events: int) -> None:
        """Mark `sock` as ready; its handler is called once, if it is watched for that."""
        fd = sock.fileno()
        self._ready[fd] = self._ready.get(fd, 0) | events

    def _ready_fds(self) -> list[int]:
        return [fd for fd, mask in self._ready.items() if mask & self._events.get(fd, 0)]

    def _serve_socket(self, fd: int) -> None:
        mask = self._ready[fd] & self._events[fd]
        self._ready[fd] &= ~mask
        watch = self._watches[fd]
        self._post.sender = watch.owner.address
        try:
            if mask & EPOLLIN:
                watch.handler.on_readable()
            if mask & EPOLLOUT and self._watches.get(fd) is watch:
                watch.handler.on_writable()
        except BaseException as error:
            self._socket_failed(watch.owner, error)

    def modify(self, sock: HasFileno, events: int) -> None:
        self._events[sock.fileno()] = events

    def _watch_fd(self, fd: int, events: int) -> None:
        self._events[fd] = events

    def _unwatch_fd(self, fd: int) -> None:
        del self._watches[fd]
        del self._events[fd]
        self._ready.pop(fd, None)

    # --- the end

    def end(self, timeout_s: float) -> bool:
        """End the scheduler behind the last actor."""
        self._end_all()
        self.timers.clear()
        self._post.end(crashed=False)
        return True

    def crash(self) -> None:
        """Cut the power: no actor runs or is asked again, and no message is answered."""
        for actor in tuple(self.system.live):
            actor.actor_stopped.set()
        self.system.live.clear()
        self._stopping.clear()
        self._watches.clear()
        self._events.clear()
        self._ready.clear()
        self.timers.clear()
        self._post.end(crashed=True)


class SimulatedSystem(ActorSystem):
    """A system on the caller's thread, with a clock of its own that starts at `start_ms`."""

    loop: Simulation

    def __init__(
        self,
        seed: int,
        disk: Disk,
        start_ms: int = 1_700_000_000_000,
        *,
        on_give_up: GiveUp | None = None,
    ) -> None:
        clock = SimulatedClock(start_ms)
        super().__init__(disk, clock, on_give_up)
        self.loop = self._threads = Simulation(self, clock, seed)
        self._start_supervisor()

    def _wait(self, arrived: Event, timeout_s: float) -> None:
        try:
            self.loop.run_until(arrived.is_set, timeout_s * 1000)
        except TimeoutError as error:
            raise TimeoutError(f"no answer {error}") from None

    def advance(self, ms: float) -> None:
        self.loop.advance(ms)

    def run_until(self, predicate: Callable[[], bool], limit_ms: float = 60_000) -> None:
        self.loop.run_until(predicate, limit_ms)

    def drain(self) -> None:
        self.loop.drain()

    def crash(self) -> None:
        self.loop.crash()
