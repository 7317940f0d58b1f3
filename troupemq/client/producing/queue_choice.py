"""Choices of a message's queue: functions of the queues and the message.

Another one is passed to `send` as `choose`; a queue to be taken anyhow, as `queue`. Those that
learn from what became of the sends are kept by a producer: `Producer(..., choose=FaultAvoiding())`.

Source of FaultAvoiding: client/latency/MQFaultStrategy.java, LatencyFaultToleranceImpl.java.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import randrange
from threading import Lock
from time import monotonic

from protocol.tags import java_hash_code
from troupemq.client.callbacks import check_callback
from troupemq.client.errors import ArgumentIllegal
from troupemq.client.message import Message, MessageQueue

QueueChoice = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Gets the queues that take messages (never none), in a fixed order. Called by any thread, and for
a further try on the I/O thread: it must not block."""

Clock = Callable[[], float]
"""Seconds since whenever."""

LATENCY_MAX_MS = (50, 100, 550, 1000, 2000, 3000, 15_000)
NOT_AVAILABLE_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
"""How long a broker is left out after a send that took at least so long (the Java client's)."""

FAILED_LATENCY_MS = 30_000
"""A failed send counts as one that took so long."""


def may_choose(choose: object) -> bool:
    """Return whether it can be called as a choice, as far as each send can find out."""
    return callable(choose) and not isinstance(choose, type) and choose is not by_hash_of


def check_choice(choose: object) -> None:
    """Raise ArgumentIllegal for a choice that cannot work, such as one that was not called yet."""
    if choose is by_hash_of:
        raise ArgumentIllegal("choose is by_hash_of(...), with the key in its parentheses")
    check_callback(choose, "choose", "queues", "message")


class RoundRobin:
    """Each queue in turn, beginning anywhere; for any thread."""

    def __init__(self) -> None:
        self._turns: dict[str, count[int]] = {}

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        turns = self._turns.get(message.topic)
        if turns is None:
            turns = self._turns.setdefault(message.topic, count(randrange(1 << 16)))
        return queues[next(turns) % len(queues)]


def by_hash_of(value: str | int) -> QueueChoice:
    """Always the same queue for the same value, as long as the queues stay the same.

    It is the queue that Java's SelectMessageQueueByHash takes for this String, for this Integer, or
    for this Long where the number does not fit an Integer.
    """
    if not isinstance(value, str | int):
        raise ArgumentIllegal(f"by_hash_of gets a string or an integer, and not {value!r}")
    digest = abs(java_hash_code(value) if isinstance(value, str) else _hash_of_int(value))
    return lambda queues, message: queues[digest % len(queues)]


def _hash_of_int(value: int) -> int:
    """Integer.hashCode, and Long.hashCode (its two halves, one upon the other) for longer ones."""
    if -(1 << 31) <= value < 1 << 31:
        return value
    folded = (value ^ value >> 32) & 0xFFFFFFFF
    return folded - (1 << 32) if folded >> 31 else folded


class LearningChoice(ABC):
    """A choice that is told how each try of its producer went; for any thread."""

    @abstractmethod
    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue: ...

    @abstractmethod
    def learn(self, broker_name: str, latency_ms: float, failed: bool) -> None:
        """A try at this broker took that long; `failed` if nothing was stored."""


@dataclass(slots=True)
class _Fault:
    latency_ms: float
    available_from_s: float


class FaultAvoiding(LearningChoice):
    """Each queue in turn, but for those of brokers that were slow or failed a while ago.

    If there are no others, one of the better half of the brokers. `latency_max_ms` and
    `not_available_ms` belong together, rising: a send of at least so many ms keeps its broker out
    for so long. `clock_s` counts seconds.
    """

    def __init__(
        self,
        latency_max_ms: Sequence[float] = LATENCY_MAX_MS,
        not_available_ms: Sequence[float] = NOT_AVAILABLE_MS,
        clock_s: Clock = monotonic,
    ) -> None:
        self._steps = list(zip(latency_max_ms, not_available_ms, strict=True))
        self._clock_s = clock_s
        self._in_turn = RoundRobin()
        self._worst = count(randrange(1 << 16))
        self._faults: dict[str, _Fault] = {}
        self._lock = Lock()

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        now_s = self._clock_s()
        with self._lock:
            out = {name for name, each in self._faults.items() if each.available_from_s > now_s}
            if out:
                available = [queue for queue in queues if queue.broker_name not in out]
                queues = available or self._at_best(queues)
        return self._in_turn(queues, message)

    def _at_best(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        """The queues of one broker of the better half; all of them have a fault."""
        ranked = sorted({queue.broker_name for queue in queues}, key=self._rank)
        name = ranked[next(self._worst) % max(1, len(ranked) // 2)]
        return [queue for queue in queues if queue.broker_name == name]

    def _rank(self, name: str) -> tuple[float, float]:
        fault = self._faults[name]
        return fault.latency_ms, fault.available_from_s

    def learn(self, broker_name: str, latency_ms: float, failed: bool) -> None:
        counted_ms = FAILED_LATENCY_MS if failed else latency_ms
        out_ms = next((out for limit, out in reversed(self._steps) if counted_ms >= limit), 0)
        with self._lock:
            self._faults[broker_name] = _Fault(latency_ms, self._clock_s() + out_ms / 1000)


@dataclass(slots=True)
class _Known:
    latency_ms: float
    asked_s: float
    failed: bool


class LowestLatency(LearningChoice):
    """The queues of the broker that answers fastest, in turn.

    A broker's latency is a mean over its last sends, half of it over the last three. One that is
    not known is asked at once; one that got nothing for `again_s`, whether it was slow or failed,
    gets one message to show how it does now. `clock_s` counts seconds.
    """

    NEW_SHARE = 0.2
    """What one more send counts in its broker's mean."""

    def __init__(self, again_s: float = 10.0, clock_s: Clock = monotonic) -> None:
        self._again_s = again_s
        self._clock_s = clock_s
        self._in_turn = RoundRobin()
        self._known: dict[str, _Known] = {}
        self._lock = Lock()

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        names = {queue.broker_name for queue in queues}
        if len(names) > 1:
            with self._lock:
                name = min(sorted(names), key=self._rank(self._clock_s()))
                if name in self._known:
                    self._known[name].asked_s = self._clock_s()
                else:
                    self._known[name] = _Known(FAILED_LATENCY_MS, self._clock_s(), True)
            queues = [queue for queue in queues if queue.broker_name == name]
        return self._in_turn(queues, message)

    def _rank(self, now_s: float) -> Callable[[str], tuple[int, float]]:
        def rank(name: str) -> tuple[int, float]:
            known = self._known.get(name)
            if known is None:
                return 0, 0.0
            if now_s - known.asked_s >= self._again_s:
                return 1, known.asked_s
            return (3 if known.failed else 2), known.latency_ms

        return rank

    def learn(self, broker_name: str, latency_ms: float, failed: bool) -> None:
        with self._lock:
            known = self._known.get(broker_name)
            if failed or known is None or known.failed:  # nothing to make a mean with
                self._known[broker_name] = _Known(latency_ms, self._clock_s(), failed)
            else:
                known.latency_ms += self.NEW_SHARE * (latency_ms - known.latency_ms)


def always(queue: MessageQueue) -> QueueChoice:
    """The choice that is none."""
    return lambda queues, message: queue


def away_from(broker_names: set[str], queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
    """The queues at other brokers; all, if there are no others."""
    if not broker_names:
        return queues
    others = [queue for queue in queues if queue.broker_name not in broker_names]
    return others or queues
