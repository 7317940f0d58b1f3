"""The name server's small settings for clients, by namespace and key.

One namespace is the name server's own: the topics of ORDER_TOPIC_CONFIG are marked as ordered.

Source: namesrv/kvconfig/KVConfigManager.java.
"""

from collections.abc import Mapping

from actors.naming.ceilings import (
    KV_CHARS_MAX,
    KV_ENTRIES_MAX,
    KV_KEY_CHARS_MAX,
    KV_NAMESPACES_MAX,
    KV_VALUE_CHARS_MAX,
    refuse,
)
from storage.tables.kv_config import KvTable, format_kv

TOO_MUCH = "too much for the settings of clients"
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KvConfig:
    """Owned by one actor."""

    def __init__(self, table: KvTable | None = None) -> None:
        """`table` is the file's."""
        self._table: KvTable = table or {}
        self._entries = sum(map(len, self._table.values()))
        self._chars = sum(len(each) for found in self._table.values() for each in found.values())

    def put(self, namespace: str, key: str, value: str) -> None:
        """Raises RemoteError where there is no room for it."""
        old = self._table.get(namespace, {}).get(key)
        chars = self._chars + len(value) - len(old or "")
        entries = self._entries + (old is None)
        if max(len(namespace), len(key)) > KV_KEY_CHARS_MAX:
            refuse(TOO_MUCH, f"namespace and key have at most {KV_KEY_CHARS_MAX} characters")
        if len(value) > KV_VALUE_CHARS_MAX:
            refuse(TOO_MUCH, f"a value has at most {KV_VALUE_CHARS_MAX} characters")
        if namespace not in self._table and len(self._table) >= KV_NAMESPACES_MAX:
            refuse(
                TOO_MUCH,
                f"there are {len(self._table)} namespaces already: at most {KV_NAMESPACES_MAX}",
            )
        if entries > KV_ENTRIES_MAX or chars > KV_CHARS_MAX:
            refuse(
                TOO_MUCH, f"at most {KV_ENTRIES_MAX} entries with {KV_CHARS_MAX} characters in all"
            )
        self._table.setdefault(namespace, {})[key] = value
        self._entries, self._chars = entries, chars

    def get(self, namespace: str, key: str) -> str | None:
        """The value; None without such a key."""
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """An empty namespace stays, as in 4.9.7: it is answered with an empty table."""
        old = self._table.get(namespace, {}).pop(key, None)
        if old is not None:
            self._entries -= 1
            self._chars -= len(old)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All entries of a namespace; None when nothing was ever put there."""
        return self._table.get(namespace)

    def text(self) -> str:
        """What the file holds."""
        return format_kv(self._table)
