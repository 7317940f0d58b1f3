"""messageRequestMode.json: how groups request messages, in the form that RocketMQ 5.x writes.

    {"messageRequestModeMap": {topic: {group: {"consumerGroup", "mode", "popShareQueueNum",
        "topic"}}}}

4.9.7 has no such file and ignores it. A topic and group without an entry use PULL.

Source: broker/loadbalance/MessageRequestModeManager.java (tag rocketmq-all-5.3.3).
"""

from collections.abc import Mapping

from protocol.bodies_assignment import RequestMode, RequestModeTable
from protocol.fastjson import dumps
from protocol.json_body import text_of
from protocol.table_rules import request_mode_fault
from storage.tables.json_config import parsed_table
from storage.tables.skipped_entry import LeftOuts, raise_fault, taken_entries

_TABLE = "messageRequestModeMap"


def parse_request_modes(text: str | bytes, left_out: LeftOuts | None = None) -> RequestModeTable:
    """Return the table in the file's text (a Parse: skipped_entry.py)."""
    _, topics = parsed_table(text, _TABLE)
    table = RequestModeTable()
    for topic, groups in taken_entries(topics, _groups, left_out, (_TABLE,)).items():

        def mode_of(key: object, value: object, topic: str = topic) -> tuple[str, RequestMode]:
            mode = RequestMode.from_json(value)
            mode.topic, mode.consumer_group = topic, text_of(key)
            raise_fault(request_mode_fault(mode))
            return mode.consumer_group, mode

        table.modes[topic] = taken_entries(groups, mode_of, left_out, (_TABLE, topic))
    return table


def _groups(key: object, value: object) -> tuple[str, Mapping[object, object]]:
    if not isinstance(value, dict):
        raise ValueError("it has no groups")
    return text_of(key), value


def format_request_modes(table: RequestModeTable) -> str:
    return dumps(table.to_json(), pretty=True).decode("utf-8")
