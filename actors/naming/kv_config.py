"""The name server's small settings for clients, by namespace and key.

One namespace is the name server's own: the topics of ORDER_TOPIC_CONFIG are marked as ordered.

Source: namesrv/kvconfig/KVConfigManager.java.
"""

from collections.abc import Mapping

from storage.tables.kv_config import KvTable, format_kv

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KvConfig:
    """Owned by one actor."""

    def __init__(self, table: KvTable | None = None) -> None:
        """`table` is the file's."""
        self._table: KvTable = table or {}

    def put(self, namespace: str, key: str, value: str) -> None:
        self._table.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        """The value; None without such a key."""
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """An empty namespace stays, as in 4.9.7: it is answered with an empty table."""
        self._table.get(namespace, {}).pop(key, None)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All entries of a namespace; None when nothing was ever put there."""
        return self._table.get(namespace)

    def text(self) -> str:
        """What the file holds."""
        return format_kv(self._table)
