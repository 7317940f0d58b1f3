"""Messages as pages need them: the queues of a topic with their ends, and readers of them."""

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.bodies_admin import TopicOffset, TopicStatsTable
from protocol.codes import RequestCode
from protocol.headers.admin import TopicHeader
from troupemq.cli.admin.reading import TOOLS_GROUP, QueueReader
from troupemq.client.errors import ClientError
from troupemq.client.message import MessageQueue
from troupemq.console.cluster import Asker


@dataclass(frozen=True)
class ReadableQueue:
    """A queue, where it begins and ends, and who reads it."""

    reader: QueueReader
    ends: TopicOffset

    @property
    def queue(self) -> MessageQueue:
        return self.reader.queue


def queues_of(
    session: Asker, topic: str, failures: list[str], expression: str = "*"
) -> Iterator[ReadableQueue]:
    """All queues of a topic that hold something or may: also those that nobody may read.

    Raises RouteNotFound; a broker that does not answer is a sentence in `failures`.
    """
    header = TopicHeader(topic)
    for place in session.topic_brokers(topic):
        try:
            table = session.read(
                TopicStatsTable, place.address, RequestCode.GET_TOPIC_STATS_INFO, header
            ).offset_table
        except ClientError as error:
            failures.append(str(error))
            continue
        for each, ends in sorted(table.items(), key=lambda item: item[0].queue_id):
            queue = MessageQueue(topic, place.name, each.queue_id)
            yield ReadableQueue(
                QueueReader(session, place.address, queue, expression, TOOLS_GROUP), ends
            )
