"""delayOffset.json: how far each delay level has been delivered, in the form 4.9.7 writes.

    {"offsetTable": {delay level: next queue offset}}

Levels count from 1 and are keys without quotes, all on one line.

Source: store/schedule/ScheduleMessageService.java, DelayOffsetSerializeWrapper.java.
"""

from protocol.bodies import DelayOffsetTable
from protocol.fastjson import dumps
from storage.json_config import parsed_table

_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1


def parse_delay_offsets(text: str) -> DelayOffsetTable:
    """The table in the file's text, in its order. Raises RemoteError or ValueError."""
    table = DelayOffsetTable.from_json(parsed_table(text, "offsetTable"))
    for level, offset in table.offset_table.items():
        if not 0 <= level <= _INT_MAX or not 0 <= offset <= _LONG_MAX:
            raise ValueError(f"the level {level} has the offset {offset}")
    return table


def format_delay_offsets(table: DelayOffsetTable) -> str:
    """The text of the file."""
    return dumps(table.to_json(), pretty=True).decode("utf-8")
