"""Queue choices: functions that return the queue of a message.

`send` takes one as `choose`, or a fixed queue as `queue`. A choice that learns from results
belongs to a producer: `Producer(..., choose=FaultAvoiding())`.

Source of FaultAvoiding: client/latency/MQFaultStrategy.java, LatencyFaultToleranceImpl.java.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import randrange
from threading import Lock
from time import monotonic
from typing import NamedTuple

from protocol.tags import java_hash_code
from troupemq.client.arguments import MS_MAX, check_instance, check_range
from troupemq.client.callbacks import check_callback
from troupemq.client.errors import ArgumentIllegal
from troupemq.client.message import Message, MessageQueue

QueueChoice = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Function of the writable queues, at least one and in a fixed order, and the message.

Called on any thread, for a retry on the I/O thread: it must not block.
"""

Clock = Callable[[], float]
"""Function that returns monotonic seconds."""

LATENCY_MAX_MS = (50, 100, 550, 1000, 2000, 3000, 15_000)
NOT_AVAILABLE_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
"""Exclusion of a broker after a send of at least that latency, as in the Java client."""

FAILED_LATENCY_MS = 30_000
"""Latency that a failed send counts as."""


def may_choose(choose: object) -> bool:
    """Return whether `choose` can be a queue choice; a cheap check for each send."""
    return callable(choose) and not isinstance(choose, type) and choose is not by_hash_of


def check_choice(choose: object) -> None:
    """Raise ArgumentIllegal for an invalid choice, such as `by_hash_of` without its call."""
    if choose is by_hash_of:
        raise ArgumentIllegal("choose is by_hash_of itself: call it with a key, by_hash_of(key)")
    check_callback(choose, "choose", "queues", "message")


class RoundRobin:
    """Choice of each queue in turn, from a random start; for any thread."""

    def __init__(self) -> None:
        self._turns: dict[str, count[int]] = {}

    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        turns = self._turns.get(message.topic)
        if turns is None:
            turns = self._turns.setdefault(message.topic, count(randrange(1 << 16)))
        return queues[next(turns) % len(queues)]


def by_hash_of(value: str | int) -> QueueChoice:
    """Return a choice of one queue for each value, as long as the topic's queues do not change.

        producer.send(message, choose=by_hash_of(order_id))

    The queue is that of Java's SelectMessageQueueByHash for a String or an Integer, or for a Long
    if the number does not fit an Integer.
    """
    if not isinstance(value, str | int):
        raise ArgumentIllegal(f"by_hash_of gets a string or an integer, and not {value!r}")
    digest = abs(java_hash_code(value) if isinstance(value, str) else _hash_of_int(value))
    return lambda queues, message: queues[digest % len(queues)]


def _hash_of_int(value: int) -> int:
    """Return Java's Integer.hashCode, or Long.hashCode if the value does not fit an Integer."""
    if -(1 << 31) <= value < 1 << 31:
        return value
    folded = (value ^ value >> 32) & 0xFFFFFFFF
    return folded - (1 << 32) if folded >> 31 else folded


class LearningChoice(ABC):
    """Base of choices that learn from the result of each try; for any thread."""

    @abstractmethod
    def __call__(self, queues: Sequence[MessageQueue], message: Message) -> MessageQueue: ...

    @abstractmethod
    def learn(self, broker_name: str, latency_ms: float, failed: bool) -> None:
        """Record the latency of a try at a broker; `failed`: nothing was stored."""


class _Fault(NamedTuple):
    latency_ms: float
    available_from_s: float


class FaultAvoiding(LearningChoice):
    """Choice of each queue in turn, without brokers that were recently slow or failed.

        Producer("orders", choose=FaultAvoiding())

    If all brokers are excluded, it takes one of the better half. `latency_max_ms` and
    `not_available_ms` are ascending pairs: a send of at least that latency excludes its broker for
    that time. `clock_s` returns seconds.
    """

    def __init__(
        self,
        latency_max_ms: Sequence[float] = LATENCY_MAX_MS,
        not_available_ms: Sequence[float] = NOT_AVAILABLE_MS,
        clock_s: Clock = monotonic,
    ) -> None:
        for times_ms in (latency_max_ms, not_available_ms):
            check_instance(times_ms, list | tuple, "the steps of FaultAvoiding are lists")
            for each in times_ms:
                check_range(each, 0, MS_MAX, "a step of FaultAvoiding")
        if len(latency_max_ms) != len(not_available_ms):
            raise ArgumentIllegal("latency_max_ms and not_available_ms have the same length")
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
        """Return the queues of one broker of the better half, in turn; all have a fault."""
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


@dataclass(slots=True, eq=False)
class _Known:
    latency_ms: float
    asked_s: float
    failed: bool


class LowestLatency(LearningChoice):
    """Choice of the queues, in turn, of the broker that answers fastest.

        Producer("orders", choose=LowestLatency())

    A broker's latency is a moving mean over its last sends, half of it over the last three. An
    unknown broker is tried at once. A broker without sends for `again_s`, slow or failed, gets one
    message to measure it again. `clock_s` returns seconds.
    """

    NEW_SHARE = 0.2
    """Weight of the latest send in its broker's mean."""

    def __init__(self, again_s: float = 10.0, clock_s: Clock = monotonic) -> None:
        check_range(again_s, 0, MS_MAX, "again_s")
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
            if failed or known is None or known.failed:  # no earlier latency for a mean
                self._known[broker_name] = _Known(latency_ms, self._clock_s(), failed)
            else:
                known.latency_ms += self.NEW_SHARE * (latency_ms - known.latency_ms)


def always(queue: MessageQueue) -> QueueChoice:
    return lambda queues, message: queue


def away_from(broker_names: set[str], queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
    """Return the queues at other brokers, or all queues if there are no others."""
    if not broker_names:
        return queues
    others = [queue for queue in queues if queue.broker_name not in broker_names]
    return others or queues
