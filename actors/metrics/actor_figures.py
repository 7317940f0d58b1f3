"""Metrics of actors and of the event loop: inboxes, restarts, long handlers.

No inbox stores how long its oldest message has waited. The page shows the time without progress
while the inbox is not empty, sampled every LOOK_MS.
"""

from time import clock_gettime, monotonic

from actors.engine.histogram import WAIT_BOUNDS_MS, ClassCounts
from actors.engine.system import ActorSystem
from actors.metrics.page import MetricsPage, labels

LOOK_MS = 1000.0
_CPU_CLOCK_OF_THREAD = 6
"""Low bits of a thread's CPU clock id, as clock_getcpuclockid(3) forms it on Linux."""


class ActorFamilies:
    """Metrics of one actor system; owned by one thread."""

    def __init__(self, system: ActorSystem) -> None:
        self._system = system
        self._stuck: dict[str, tuple[int, float]] = {}
        """Handled count and start time of actors with messages but no progress."""
        self._cpu: tuple[float, float] | None = None
        self._busy = 0.0
        self.loop_waits = ClassCounts(WAIT_BOUNDS_MS)
        """Waits of messages to the loop, ms."""

    def look(self) -> None:
        """Sample inboxes and CPU time; call it every LOOK_MS."""
        now_s = monotonic()
        found: dict[str, tuple[int, float]] = {}
        for each in self._system.figures():
            if each.inbox_depth:
                known = self._stuck.get(each.name)
                is_same = known is not None and known[0] == each.handled_count
                found[each.name] = known if known and is_same else (each.handled_count, now_s)
        self._stuck = found
        cpu_s = self._loop_cpu_s()
        if cpu_s is not None:
            if self._cpu is not None and now_s > self._cpu[0]:
                self._busy = min(1.0, (cpu_s - self._cpu[1]) / (now_s - self._cpu[0]))
            self._cpu = now_s, cpu_s

    def _loop_cpu_s(self) -> float | None:
        thread_id = self._system.loop.native_thread_id
        return None if not thread_id else clock_gettime(~thread_id << 3 | _CPU_CLOCK_OF_THREAD)

    def write(self, page: MetricsPage) -> None:
        figures, now_s = self._system.figures(), monotonic()
        named = [(labels({"actor": each.name}), each) for each in figures]
        page.gauge(
            "troupemq_actor_inbox_messages",
            "Messages in an actor's inbox",
            [(text, each.inbox_depth) for text, each in named],
        )
        page.gauge(
            "troupemq_actor_inbox_oldest_seconds",
            "Seconds without progress while the inbox is not empty",
            [
                (text, max(0.0, now_s - self._stuck[each.name][1]))
                if each.name in self._stuck
                and self._stuck[each.name][0] == each.handled_count
                and each.inbox_depth
                else (text, 0)
                for text, each in named
            ],
        )
        page.counter(
            "troupemq_actor_handled_total",
            "Messages handled by an actor",
            [(text, each.handled_count) for text, each in named],
        )
        page.counter(
            "troupemq_actor_restarts_total",
            "Restarts of an actor",
            [(text, max(0, each.incarnation - 1)) for text, each in named],
        )
        page.counter(
            "troupemq_request_handler_failures_total",
            "Requests refused because their handler failed, by actor",
            [(text, each.failed_count) for text, each in named],
        )
        self._loop(page)

    def _loop(self, page: MetricsPage) -> None:
        loop = self._system.loop
        longest = loop.take_longest()
        page.gauge(
            "troupemq_handler_longest_seconds",
            "Longest handler on the loop since the last scrape",
            [
                (
                    labels(
                        {"dispatcher": "loop", "actor": longest.actor, "message": longest.message}
                    ),
                    longest.ms / 1000,
                )
            ],
        )
        page.counter(
            "troupemq_slow_handlers_total",
            "Handlers on the loop longer than 50 ms",
            [("", loop.slow_handler_count)],
        )
        page.counter(
            "troupemq_loop_rounds_total", "Rounds of the event loop", [("", loop.round_count)]
        )
        page.value(
            "troupemq_loop_busy_ratio", "CPU time of the loop as a ratio of real time", self._busy
        )
        waits = self.loop_waits
        page.histogram(
            "troupemq_loop_wait_seconds",
            "Waits of messages to the loop, sampled once per second",
            [bound / 1000 for bound in waits.bounds],
            [("", list(waits.counts), waits.total / 1000)],
        )
