"""delayOffset.json: the delivered offset of each delay level, in the form 4.9.7 writes.

    {"offsetTable": {delay level: next queue offset}}

Levels count from 1 and are keys without quotes, all on one line. A level with timers, or with a
shorter delay than before, may have messages behind its offset that are delivered. The file then has
two more fields, extensions that 4.9.7 ignores; a slave has the second one at all times:

    "deliveredAhead": {delay level: text (storage/tables/ahead_set.py)}
    "timersFrom": offset of the log from which a start looks for further copies of timers

Source: store/schedule/ScheduleMessageService.java, DelayOffsetSerializeWrapper.java.
"""

from protocol.bodies_tables import DelayOffsetTable
from protocol.fastjson import dumps
from protocol.json_body import integer_of
from protocol.table_rules import LONG_MAX, delay_offset_fault
from storage.tables.ahead_set import AHEAD_BYTES_MAX, AheadSet
from storage.tables.json_config import parsed_table
from storage.tables.skipped_entry import LeftOuts, raise_fault, taken_entries

_TABLE, _AHEAD, _FROM = "offsetTable", "deliveredAhead", "timersFrom"


def parse_delay_offsets(text: str | bytes, left_out: LeftOuts | None = None) -> DelayOffsetTable:
    """Return the table in the file's text, in its order (a Parse: skipped_entry.py)."""
    whole, levels = parsed_table(text, _TABLE)
    table = DelayOffsetTable(taken_entries(levels, _offset, left_out, (_TABLE,)))
    ahead = whole.get(_AHEAD)
    if isinstance(ahead, dict):
        table.delivered_ahead = taken_entries(ahead, _ahead, left_out, (_AHEAD,))
    begin = whole.get(_FROM)
    if isinstance(begin, int) and 0 <= begin <= LONG_MAX:
        table.timers_from = begin
    return table


def _ahead(key: object, value: object) -> tuple[int, str]:
    level = integer_of(key)
    raise_fault(delay_offset_fault(level, 0))
    if not isinstance(value, str):
        raise ValueError("the set of delivered messages is not a text")
    AheadSet.decode(value)
    return level, value


def _offset(key: object, value: object) -> tuple[int, int]:
    level, offset = integer_of(key), integer_of(value)
    raise_fault(delay_offset_fault(level, offset))
    return level, offset


def format_delay_offsets(table: DelayOffsetTable) -> str:
    return dumps(table.to_json(), pretty=True).decode("utf-8")


def ahead_sets(table: DelayOffsetTable) -> dict[int, AheadSet]:
    """Return the delivered messages behind the offsets, by level.

    Their bits have AHEAD_BYTES_MAX in all; those beyond it are delivered again.
    """
    sets: dict[int, AheadSet] = {}
    room = AHEAD_BYTES_MAX
    for level, text in (table.delivered_ahead or {}).items():
        sets[level] = AheadSet.decode(text, room)
        room -= sets[level].size_bytes
    return sets
