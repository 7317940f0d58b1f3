"""consumerOffset.json: how far each consumer group has come, in the form 4.9.7 writes.

    {"offsetTable": {"topic@group": {queue id: next queue offset}}}

Queue ids are keys without quotes, all on one line.

Source: broker/offset/ConsumerOffsetManager.java.
"""

from protocol.bodies import ConsumerOffsetTable
from protocol.fastjson import dumps, loads

TOPIC_GROUP_SEPARATOR = "@"


def parse_offsets(text: str) -> ConsumerOffsetTable:
    """The table in the file's text, in its order. Raises RemoteError or FastjsonError."""
    return ConsumerOffsetTable.from_json(loads(text))


def format_offsets(table: ConsumerOffsetTable) -> str:
    """The text of the file."""
    return dumps(table.to_json(), pretty=True).decode("utf-8")


def offset_key(topic: str, group: str) -> str:
    """The key under which a group's offsets of a topic are kept."""
    return f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"
