"""The name server's small settings for clients, by namespace and key, and their file.

One namespace is the name server's own: the topics of ORDER_TOPIC_CONFIG are marked as ordered.

Source: namesrv/kvconfig/KVConfigManager.java.
"""

from collections.abc import Mapping

from protocol.fastjson import dumps
from storage.json_config import parsed_table

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KvConfig:
    """Owned by one actor."""

    def __init__(self, text: str | None = None) -> None:
        """`text` is the file's. Raises ValueError for one that cannot be."""
        self._table: dict[str, dict[str, str]] = {}
        table = parsed_table(text, "configTable")["configTable"] if text else {}
        for namespace, entries in table.items() if isinstance(table, dict) else ():
            if not isinstance(entries, dict):
                raise ValueError(f"the namespace {namespace} is no table")
            self._table[str(namespace)] = {str(key): str(entries[key]) for key in entries}

    def put(self, namespace: str, key: str, value: str) -> None:
        self._table.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """An empty namespace stays, as in 4.9.7: it is answered with an empty table."""
        self._table.get(namespace, {}).pop(key, None)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All entries of a namespace; None when nothing was ever put there."""
        return self._table.get(namespace)

    def text(self) -> str:
        """What the file holds."""
        return dumps({"configTable": self._table}).decode()
