"""Readers of messages for pages: the queues of a topic with their min and max offsets."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nlargest
from typing import TypeVar

from protocol.bodies import MessageQueue as TableQueue
from protocol.bodies_admin import TopicOffset, TopicStatsTable
from protocol.codes import RequestCode, ResponseCode
from protocol.headers.admin import TopicHeader
from protocol.headers.client import QueryMessageHeader
from protocol.headers.fields import Header
from troupemq.client.admin import BrokerPlace
from troupemq.client.admin.messages import (
    FOREVER_MS,
    QUERIED_MAX,
    key_question,
    views_with_key,
)
from troupemq.client.admin.reading import TOOLS_GROUP, QueueReader
from troupemq.client.errors import BrokerError, ClientError, understood
from troupemq.client.message import MessageQueue, MessageView
from troupemq.console.cluster import DEADLINE_S, DeadlineSession

ENDS_S = 1.5
"""Deadline for min and max offsets; the rest of the page's time is for the messages."""

Found = TypeVar("Found")
Reading = Callable[[BrokerPlace, bytes | memoryview | None], Found]


@dataclass(frozen=True)
class ReadableQueue:
    """Queue with its min and max offset, and its reader."""

    reader: QueueReader
    ends: TopicOffset

    @property
    def queue(self) -> MessageQueue:
        return self.reader.queue


def queues_of(
    session: DeadlineSession, topic: str, failures: list[str], expression: str = "*"
) -> Iterator[ReadableQueue]:
    """Return all queues of a topic, also those without read permission.

    Raises RouteNotFound. Adds a sentence to `failures` for each broker that does not answer.
    """
    question = RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic)
    for place, table in _answers(session, topic, question, _ends, failures, ENDS_S):
        for each, ends in sorted(table.items(), key=lambda item: item[0].queue_id):
            queue = MessageQueue(topic, place.name, each.queue_id)
            yield ReadableQueue(
                QueueReader(session, place.address, queue, expression, TOOLS_GROUP), ends
            )


def newest_of(
    session: DeadlineSession, topic: str, count: int, failures: list[str]
) -> list[MessageView]:
    """Return the newest messages of a topic, the newest first. Raises ClientError."""

    def newest() -> Iterator[MessageView]:
        for each in queues_of(session, topic, failures):
            last = each.ends.max_offset
            yield from each.reader.messages(max(last - count, each.ends.min_offset), last)

    return nlargest(count, newest(), key=lambda view: view.store_timestamp_ms)


def _ends(_: BrokerPlace, body: bytes | memoryview | None) -> dict[TableQueue, TopicOffset]:
    return understood(TopicStatsTable.decode, body).offset_table


def found_by_key(
    session: DeadlineSession,
    topic: str,
    key: str,
    failures: list[str],
    begin_ms: int | None = None,
    end_ms: int | None = None,
) -> list[MessageView]:
    """Return the messages of a topic with a key or an id, the oldest first.

    Raises RouteNotFound. Adds a sentence to `failures` for each broker that does not answer.
    """
    end_ms = FOREVER_MS if end_ms is None else end_ms
    header = QueryMessageHeader(topic, key, QUERIED_MAX, begin_ms or 0, end_ms)
    question = RequestCode.QUERY_MESSAGE, key_question(header)

    def views(place: BrokerPlace, body: bytes | memoryview | None) -> list[MessageView]:
        return views_with_key(body, place.name, header)

    answers = _answers(session, topic, question, views, failures)
    found = [view for _, some in answers for view in some]
    return sorted(found, key=lambda each: each.store_timestamp_ms)


def _answers(
    session: DeadlineSession,
    topic: str,
    question: tuple[RequestCode, Header],
    read: Reading[Found],
    failures: list[str],
    seconds: float = DEADLINE_S,
) -> Iterator[tuple[BrokerPlace, Found]]:
    """Ask all brokers of a topic concurrently; return the answers that have data."""
    places = {each.address: each for each in session.topic_brokers(topic)}
    for address, answer in session.ask_all(list(places), *question, seconds).items():
        try:
            if isinstance(answer, ClientError):
                raise answer
            if answer.code == ResponseCode.SUCCESS:
                yield places[address], read(places[address], answer.body)
            elif answer.code != ResponseCode.QUERY_NOT_FOUND:
                raise BrokerError(answer.code, answer.remark, address)
        except ClientError as error:
            said = str(error)
            failures.append(said if address in said else f"{address}: {said}")
