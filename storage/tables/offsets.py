"""consumerOffset.json: the consumer offsets of all groups, in the form 4.9.7 writes.

    {"offsetTable": {"topic@group": {queue id: next queue offset}}}

Queue ids are keys without quotes, all on one line. A store in which groups have received messages
has one more field, an extension that 4.9.7 ignores and drops when it saves:

    "journal": generation of the journal that follows the file (offset_journal.py)

Source: broker/offset/ConsumerOffsetManager.java.
"""

from protocol.bodies_tables import ConsumerOffsetTable
from protocol.fastjson import dumps
from protocol.json_body import integer_of, text_of
from protocol.table_rules import LONG_MAX, offset_fault, queue_id_fault
from storage.tables.json_config import parsed_table
from storage.tables.skipped_entry import LeftOuts, raise_fault, taken_entries

TOPIC_GROUP_SEPARATOR = "@"
_TABLE, _JOURNAL = "offsetTable", "journal"


def parse_offsets(text: str | bytes, left_out: LeftOuts | None = None) -> ConsumerOffsetTable:
    """Return the table in the file's text, in its order (a Parse: skipped_entry.py).

    An entry is the offset of one queue, or a key without queues.
    """

    def queues_of(key: object, value: object) -> tuple[str, dict[int, int]]:
        name = text_of(key)
        if value == "":  # fastjson reads it as a map
            return name, {}
        if not isinstance(value, dict):
            raise ValueError("there is no table of queues")
        return name, taken_entries(value, _offset, left_out, (_TABLE, key))

    whole, keys = parsed_table(text, _TABLE)
    table = taken_entries(keys, queues_of, left_out, (_TABLE,))
    for key in [key for key, queues in table.items() if keys.get(key) and not queues]:
        del table[key]  # all its queues are left out
    found = ConsumerOffsetTable(table)
    journal = whole.get(_JOURNAL)
    if isinstance(journal, int) and 0 <= journal <= LONG_MAX:
        found.journal = journal
    return found


def _offset(key: object, value: object) -> tuple[int, int]:
    queue_id, offset = integer_of(key), integer_of(value)
    raise_fault(queue_id_fault(queue_id) or offset_fault(offset))
    return queue_id, offset


def format_offsets(table: ConsumerOffsetTable) -> str:
    return dumps(table.to_json(), pretty=True).decode("utf-8")


def offset_key(topic: str, group: str) -> str:
    """Return the key of a group's offsets in a topic."""
    return f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"


def group_of(key: str) -> str:
    return key.rpartition(TOPIC_GROUP_SEPARATOR)[2]


def topic_of(key: str) -> str:
    return key.rpartition(TOPIC_GROUP_SEPARATOR)[0]
