"""The table of SQL92 expressions by which groups filter messages.

Owns: the filters by topic and group, and consumerFilter.json.
Receives: RegisterFilters, UnregisterFilters (Clients); CompileFirst (Clients, PullMessage).
Sends: WriteFile (ConfigWriter); the message of CompileFirst (its sender). It answers heartbeats of
RegisterFilters once pulls know the filters.
Publishes: the filters, for pulls and for the bit maps of queue extensions.

Expressions are compiled in steps, a limited number of characters per round of the loop. One of
8,192 characters takes 30 ms.

Source: broker/filter/ConsumerFilterManager.java, DefaultConsumerIdsChangeListener.java.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from actors.config import BrokerConfig
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.tables.messages import CompileFirst, RegisterFilters, UnregisterFilters
from actors.tables.persisted import TickedTable
from protocol.bodies import ConsumerData
from protocol.sql92 import SqlError, compile_filter, is_compiled
from protocol.topic_names import GROUP_CHARS_MAX, is_legal_name
from storage.tables.consumer_filters import (
    SQL92,
    TAG,
    ConsumerFilters,
    format_filters,
    parse_filters,
)

log = get_logger(__name__)

SAVE_MS = 10_000
TURN_CHARS = 1024
"""Characters compiled in a round; its last expression is completed: up to 9,215, 32 ms."""
REGISTERED_CHARS = 8
"""Characters that take as long as the registration of a compiled expression."""


@dataclass(frozen=True, slots=True)
class _NextTurn:
    """The next round of the loop: continue compiling."""


Task: TypeAlias = RegisterFilters | UnregisterFilters | CompileFirst


class FilterTable(TickedTable):
    """Filter table. Runs on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        path: str,
        *,
        filters: SnapshotRef[ConsumerFilters],
        was_stopped_cleanly: bool,
        config_writer: ActorAddress,
    ) -> None:
        """Publish `filters`; filters already there come from before a restart of this actor."""
        super().__init__(path, config_writer)
        self._config = config
        self._published = filters
        self._was_stopped_cleanly = was_stopped_cleanly
        self._filters = ConsumerFilters(config.bloom)
        self._published_count = self._saved_count = 0
        self._tasks: deque[tuple[Task, Iterator[int]]] = deque()
        self._left_chars = TURN_CHARS
        self._has_asked = False

    def on_start(self) -> None:
        if len(self._published.value):
            self._filters = self._published.value.copy()
            self._saved_count = -1
        else:
            self._load()
        self._publish()
        self.save_every(SAVE_MS)

    def _load(self) -> None:
        found = self.load(lambda text, left_out: parse_filters(text, self._config.bloom, left_out))
        if found.value is not None:
            self._filters = found.value.loaded(
                self.system.clock.now_ms(),
                is_newest=self._was_stopped_cleanly and found.is_newest,
            )
            left_out = len(found.value) - len(self._filters)
            if left_out:
                log.warning("consumer filters left out", file=self._path, count=left_out)
        if found.value is not None or found.is_to_be_saved:
            self._saved_count = -1

    @handles(RegisterFilters)
    def on_register(self, message: RegisterFilters) -> None:
        """Register the filters of a group; its filters of other topics become dead."""
        self._add(message, self._register_all(message))

    @handles(CompileFirst)
    def on_compile_first(self, message: CompileFirst) -> None:
        """Compile an expression without blocking the loop."""
        self._add(message, self._compile(message))

    @handles(UnregisterFilters)
    def on_unregister(self, message: UnregisterFilters) -> None:
        """Mark the group's filters as dead; they are kept in case it returns."""
        self._add(message, self._unregister(message))

    def _add(self, task: Task, steps: Iterator[int]) -> None:
        self._tasks.append((task, steps))
        self._go_on()

    @handles(_NextTurn)
    def on_next_turn(self, _: _NextTurn) -> None:
        self._left_chars, self._has_asked = TURN_CHARS, False
        self._go_on()

    def _go_on(self) -> None:
        while self._tasks and self._left_chars > 0:
            chars = next(self._tasks[0][1], None)
            if chars is None:
                self._tasks.popleft()
            else:
                self._left_chars -= chars
        self._publish()  # in the round that registers
        if self._left_chars < TURN_CHARS and not self._has_asked:
            self._has_asked = True
            self.system.loop.tell_in_next_round(self.address, _NextTurn())

    def on_failure(self, *reason: object) -> None:
        while self._tasks:
            task = self._tasks.popleft()[0]
            if not isinstance(task, UnregisterFilters):
                task.on_undelivered(self.remark())
        super().on_failure(*reason)

    # --- tasks: iterators of steps, each yields its number of compiled characters

    def _register_all(self, message: RegisterFilters) -> Iterator[int]:
        """Compile first, so that a filter is born when the bit maps of messages begin to show it.

        A message from in between has no bit of the filter, and would be hidden from its group.
        """
        for consumer in message.consumers:
            for each in consumer.subscription_data_set:
                if each.expression_type == SQL92:
                    yield from _compiled(each.sub_string)
        for consumer in message.consumers:
            yield from self._register(consumer)
        message.request.answer()

    def _compile(self, message: CompileFirst) -> Iterator[int]:
        yield from _compiled(message.expression)
        message.reply_to.tell(message.message)

    def _unregister(self, message: UnregisterFilters) -> Iterator[int]:
        for _ in self._filters.unregister(message.group, self.system.clock.now_ms()):
            yield 1

    def _register(self, data: ConsumerData) -> Iterator[int]:
        filters, clock = self._filters, self.system.clock
        for each in data.subscription_data_set:
            if not is_legal_name(each.topic) or not is_legal_name(data.group_name, GROUP_CHARS_MAX):
                self.log_dropped("filter not taken: no legal name", topic=each.topic)
                continue
            filters.register(
                each.topic,
                data.group_name,
                each.sub_string,
                each.expression_type,
                each.sub_version,
                clock.now_ms(),
            )
            is_tags = each.expression_type in ("", TAG)
            if filters.is_full and not is_tags and not filters.get(each.topic, data.group_name):
                self.log_dropped("filter not taken: too many", group=data.group_name)
            yield 1 if is_tags else REGISTERED_CHARS
        topics = {each.topic for each in data.subscription_data_set}
        for _ in filters.keep_only(data.group_name, topics, clock.now_ms()):
            yield 1

    def _publish(self) -> None:
        count = self._filters.change_count
        if count != self._published_count:
            self._published_count = count
            self._published.value = self._filters.copy()

    def save_changes(self) -> None:
        """Forget long dead filters, then save changes."""
        span_ms = self._config.filter_clean_time_span_ms
        forgotten = self._filters.forget_long_dead(self.system.clock.now_ms(), span_ms)
        if forgotten:
            log.info("consumer filters forgotten", count=forgotten)
            self._publish()
        if self._saved_count == self._filters.change_count:
            return
        self._saved_count = self._filters.change_count
        snapshot = self._filters.copy()
        self.save(lambda: format_filters(snapshot))


def _compiled(expression: str) -> Iterator[int]:
    """Compile an expression unless that has been done; yield its characters."""
    if not is_compiled(expression):
        with suppress(SqlError):  # the error is cached, too
            compile_filter(expression)
        yield len(expression)
