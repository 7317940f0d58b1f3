"""consumerOffset.json: how far each consumer group has come, in the form 4.9.7 writes.

    {"offsetTable": {"topic@group": {queue id: next queue offset}}}

Queue ids are keys without quotes, all on one line.

Source: broker/offset/ConsumerOffsetManager.java.
"""

from protocol.bodies import ConsumerOffsetTable
from protocol.fastjson import dumps
from storage.json_config import parsed_table

TOPIC_GROUP_SEPARATOR = "@"
_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1


def parse_offsets(text: str) -> ConsumerOffsetTable:
    """The table in the file's text, in its order. Raises RemoteError or ValueError."""
    table = ConsumerOffsetTable.from_json(parsed_table(text, "offsetTable"))
    for key, queues in table.offset_table.items():
        for queue_id, offset in queues.items():
            if not 0 <= queue_id <= _INT_MAX or abs(offset) > _LONG_MAX:
                raise ValueError(f"{key} has the offset {offset} in a queue {queue_id}")
    return table


def format_offsets(table: ConsumerOffsetTable) -> str:
    """The text of the file."""
    return dumps(table.to_json(), pretty=True).decode("utf-8")


def offset_key(topic: str, group: str) -> str:
    """The key under which a group's offsets of a topic are kept."""
    return f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"


def group_of(key: str) -> str:
    """The group of such a key."""
    return key.rpartition(TOPIC_GROUP_SEPARATOR)[2]
