"""The topics and groups that a scrape shows: those that match, the busiest, the rest as one.

A row is a topic, or a topic and a group, with its values. Past the limit those are kept that have
counted most since the start; all others are one row, `other`, with the sum of what can be added up
and the most of what cannot.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from re import Pattern
from typing import TypeVar

from actors.metrics.page import labels
from actors.settings.metrics_settings import MetricsSettings, compiled_pattern
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic

OTHER = "other"
Key = TypeVar("Key")
Value = TypeVar("Value")
SYSTEM_GROUPS = ("CID_RMQ_SYS_", "rmq_sys_")


@dataclass(slots=True)
class Row:
    """Values of one topic, or of a topic and a group."""

    topic: str
    group: str
    weight: float
    """How busy it is."""
    values: Sequence[float]
    text: str = ""
    """Its labels."""


class MetricsSelection:
    """What the settings say."""

    def __init__(self, settings: MetricsSettings) -> None:
        self.series_max = settings.metrics_series_max
        self._shows_system = settings.metrics_system_topics
        self._topics = compiled_pattern("metricsTopicPattern", settings.metrics_topic_pattern)
        self._groups = compiled_pattern("metricsGroupPattern", settings.metrics_group_pattern)

    def shows_topic(self, topic: str) -> bool:
        """Whether a topic is shown at all."""
        is_hidden = not self._shows_system and is_system_topic(topic)
        return not is_hidden and _matches(self._topics, topic)

    def shows_group(self, group: str) -> bool:
        """Whether a group is shown at all."""
        is_hidden = not self._shows_system and group.startswith(SYSTEM_GROUPS)
        return not is_hidden and _matches(self._groups, group)

    def limited(
        self,
        rows: Sequence[Row],
        *,
        series_of_one: int = 1,
        greatest: Sequence[int] = (),
        write: Callable[[Row], str] | None = None,
    ) -> list[Row]:
        """As many of the rows as may be, with their labels; the others as one.

        `series_of_one`: so many lines a row makes of one name. `greatest`: values of which the most
        is shown for the others, not the sum.
        """
        most = max(1, self.series_max // series_of_one)
        kept = list(rows)
        if len(kept) > most:
            kept = nlargest(most - 1, rows, key=_weight)
            chosen = set(map(id, kept))
            kept.append(_together([row for row in rows if id(row) not in chosen], greatest))
        write = write or row_labels
        for row in kept:
            row.text = write(row)
        return kept


def items_of(table: Mapping[Key, Value]) -> Iterator[tuple[Key, Value]]:
    """One after the other, while others change the table. Nobody else runs while the keys are
    copied: 0.2 ms of 30,000, where pairs take 3 ms."""
    for key in list(table):
        value = table.get(key)
        if value is not None:
            yield key, value


def _matches(pattern: Pattern[str] | None, name: str) -> bool:
    return pattern is None or pattern.fullmatch(name) is not None


def _weight(row: Row) -> float:
    return row.weight


def _together(rows: Sequence[Row], greatest: Sequence[int]) -> Row:
    columns = zip(*(row.values for row in rows), strict=True)
    values = [
        max(column) if number in greatest else sum(column) for number, column in enumerate(columns)
    ]
    group = OTHER if any(row.group for row in rows) else ""
    return Row(OTHER, group, 0.0, values)


def row_labels(row: Row) -> str:
    """In the names of RocketMQ 5."""
    pairs: Mapping[str, str] = {"topic": row.topic, "is_system": flag(is_system_topic(row.topic))}
    if row.group:
        is_retry = row.topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
        pairs = {
            "topic": row.topic,
            "consumer_group": row.group,
            "is_retry": flag(is_retry),
            "is_system": flag(row.group.startswith(SYSTEM_GROUPS) or is_system_topic(row.topic)),
        }
    return labels(pairs)


def flag(value: bool) -> str:
    """As labels say yes and no."""
    return "true" if value else "false"


def column(rows: Iterable[Row], number: int) -> list[tuple[str, float]]:
    """One value of each row, as samples."""
    return [(row.text, row.values[number]) for row in rows]
