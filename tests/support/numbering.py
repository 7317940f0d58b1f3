"""Brokers with queues that begin again, and a group that consumed the earlier messages."""

from collections.abc import Mapping
from typing import Any

from protocol.bodies_tables import ConsumerOffsetTable, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.headers.admin import TopicHeader
from protocol.message import decode_records
from storage.tables.json_config import save
from storage.tables.offsets import format_offsets
from storage.tables.topics import format_topics
from tests.support.brokers import SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk

CONFIG = "/store/config"


def broker(disk: FakeDisk | None = None, **settings: Any) -> SimulatedBroker:
    made = SimulatedBroker(1, disk or FakeDisk(), **settings)
    return made


def disk_with(offsets: Mapping[str, Mapping[int, int]], *topics: str) -> FakeDisk:
    """A store that has lost all messages, but neither topics nor offsets."""
    disk = FakeDisk()
    disk.make_dirs(CONFIG)
    table = TopicConfigTable({topic: TopicConfig(topic, 4, 4) for topic in topics})
    save(disk, f"{CONFIG}/topics.json", format_topics(table))
    text = format_offsets(ConsumerOffsetTable({key: dict(offsets[key]) for key in offsets}))
    save(disk, f"{CONFIG}/consumerOffset.json", text)
    return disk


def send_many(made: SimulatedBroker, count: int, queue_id: int = 0) -> list[int]:
    """The queue offsets of so many messages."""
    answers = [made.send(b"%d" % number, queue_id=queue_id) for number in range(count)]
    made.system.advance(100)
    return [int((answer.fields or {})["queueOffset"]) for answer in answers]


def delete_topic(made: SimulatedBroker, topic: str = "Topic") -> None:
    command = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic).encode())
    assert made.ask(command).code == 0


def commit(
    made: SimulatedBroker, offset: int, *, oneway: bool = True, group: str = "consumers"
) -> None:
    fields = {
        "consumerGroup": group,
        "topic": "Topic",
        "queueId": "0",
        "commitOffset": str(offset),
    }
    flag = ONEWAY_FLAG if oneway else 0
    command = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields, flag=flag)
    if oneway:
        made.client.start(command, lambda _: None)
        made.system.drain()
    else:
        assert made.ask(command).code == 0


def committed(made: SimulatedBroker, key: str = "Topic@consumers") -> Mapping[int, int] | None:
    answer = made.ask(RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET))
    return ConsumerOffsetTable.decode(answer.body).offset_table.get(key)


def begin(made: SimulatedBroker, group: str = "consumers") -> int:
    """Return the offset at which a new member of the group begins."""
    fields = {"consumerGroup": group, "topic": "Topic", "queueId": "0"}
    answer = made.ask(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    assert answer.code == 0
    return int((answer.fields or {})["offset"])


def pulled(made: SimulatedBroker, offset: int, count: int = 32) -> tuple[int, list[int], int]:
    """The code, the queue offsets that come, and where the next pull is to go."""
    answer = made.pull(offset, count=count)
    records = decode_records(answer.body) if answer.code == 0 and answer.body else []
    return answer.code, [each.queue_offset for each in records], _next(answer)


def _next(answer: RemotingCommand) -> int:
    return int((answer.fields or {})["nextBeginOffset"])


def with_100_consumed(made: SimulatedBroker) -> None:
    made.make_topic()
    made.subscribe()
    send_many(made, 100)
    commit(made, 100)
    assert committed(made) == {0: 100}
