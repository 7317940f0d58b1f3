"""kvConfig.json: a name server's key-value settings for clients, in the form 4.9.7 writes.

    {"configTable": {namespace: {key: value}}}

Source: namesrv/kvconfig/KVConfigManager.java, KVConfigSerializeWrapper.java.
"""

from collections.abc import Mapping

from protocol.fastjson import dumps
from protocol.json_body import text_of
from storage.tables.json_config import parsed_table
from storage.tables.skipped_entry import LeftOuts, taken_entries

KvTable = dict[str, dict[str, str]]
"""Values by namespace and key."""
_TABLE = "configTable"


def parse_kv(text: str | bytes, left_out: LeftOuts | None = None) -> KvTable:
    """Return the table in the file's text, in its order (a Parse: skipped_entry.py).

    An entry is one key, or a namespace without keys.
    """

    def namespace_of(key: object, value: object) -> tuple[str, dict[str, str]]:
        if not isinstance(value, dict):
            raise ValueError("there is no table of keys")
        return text_of(key), taken_entries(value, _setting, left_out, (_TABLE, key))

    return taken_entries(parsed_table(text, _TABLE)[1], namespace_of, left_out, (_TABLE,))


def _setting(key: object, value: object) -> tuple[str, str]:
    if value is None:
        raise ValueError("it has no value")
    return text_of(key), text_of(value)


def format_kv(table: Mapping[str, Mapping[str, str]]) -> str:
    return dumps({_TABLE: table}).decode("utf-8")
