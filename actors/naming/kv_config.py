"""Key-value settings that a name server stores for clients, by namespace.

The name server itself uses one namespace: topics in ORDER_TOPIC_CONFIG are ordered.

Source: namesrv/kvconfig/KVConfigManager.java.
"""

from collections.abc import Mapping

from actors.naming.table_limits import (
    KV_CHARS_MAX,
    KV_ENTRIES_MAX,
    KV_KEY_CHARS_MAX,
    KV_NAMESPACES_MAX,
    KV_ORDERED_CHARS_MAX,
    KV_VALUE_CHARS_MAX,
    refuse,
)
from protocol.bodies import KVTable
from storage.tables.kv_config import KvTable

TOO_MUCH = "KV config limit reached"
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KvConfig:
    """Table with limits, owned by one actor."""

    def __init__(self, table: KvTable | None = None) -> None:
        """Create the table from the file's `table`, which may exceed the limits."""
        self._table: KvTable = table or {}
        self._entries = sum(map(len, self._table.values()))
        self._chars = sum(map(self.chars_of, self._table))
        self._ordered_chars = self.chars_of(ORDER_TOPIC_CONFIG)
        self._ordered: bytes | None = None

    def chars_of(self, namespace: str) -> int:
        """Return the characters of all entries of a namespace."""
        found = self._table.get(namespace, {})
        return sum(_chars(namespace, key, value) for key, value in found.items())

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises RemoteError if a limit is reached."""
        old = self._table.get(namespace, {}).get(key)
        more = _chars(namespace, key, value)
        if old is not None:
            more -= _chars(namespace, key, old)
        if max(len(namespace), len(key)) > KV_KEY_CHARS_MAX:
            refuse(TOO_MUCH, f"namespace and key have at most {KV_KEY_CHARS_MAX} characters")
        if len(value) > KV_VALUE_CHARS_MAX:
            refuse(TOO_MUCH, f"a value has at most {KV_VALUE_CHARS_MAX} characters")
        if (old is None and self._entries >= KV_ENTRIES_MAX) or _grows_over(
            self._chars, more, KV_CHARS_MAX
        ):
            refuse(
                TOO_MUCH, f"limit of {KV_ENTRIES_MAX} entries or {KV_CHARS_MAX} characters reached"
            )
        if namespace == ORDER_TOPIC_CONFIG and _grows_over(
            self._ordered_chars, more, KV_ORDERED_CHARS_MAX
        ):
            refuse(TOO_MUCH, f"{ORDER_TOPIC_CONFIG} has at most {KV_ORDERED_CHARS_MAX} characters")
        if namespace not in self._table:
            self._make_room()
        self._table.setdefault(namespace, {})[key] = value
        self._note(namespace, int(old is None), more)

    def _make_room(self) -> None:
        """Remove an empty namespace if the limit is reached.

        Raises RemoteError if there is no empty one.
        """
        if len(self._table) < KV_NAMESPACES_MAX:
            return
        for namespace, found in self._table.items():
            if not found and namespace != ORDER_TOPIC_CONFIG:  # brokers need its empty table
                del self._table[namespace]
                return
        refuse(
            TOO_MUCH,
            f"namespace limit of {KV_NAMESPACES_MAX} reached: empty one first",
        )

    def _note(self, namespace: str, more_entries: int, more_chars: int) -> None:
        self._entries += more_entries
        self._chars += more_chars
        if namespace == ORDER_TOPIC_CONFIG:
            self._ordered_chars += more_chars
            self._ordered = None

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value, or None."""
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a key.

        An empty namespace stays while there is room and is answered with an empty table, as in
        4.9.7.
        """
        old = self._table.get(namespace, {}).pop(key, None)
        if old is not None:
            self._note(namespace, -1, -_chars(namespace, key, old))

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return all entries of a namespace, or None if it does not exist."""
        return self._table.get(namespace)

    @property
    def has_too_much_order(self) -> bool:
        """Whether the file has more ordered topics than a broker accepts."""
        return self._ordered_chars > KV_ORDERED_CHARS_MAX

    def ordered(self) -> bytes | None:
        """Return the ordered topics for brokers, an encoded KVTable.

        Returns None if the namespace does not exist or is too large.
        """
        found = self._table.get(ORDER_TOPIC_CONFIG)
        if found is None or self.has_too_much_order:
            return None
        if self._ordered is None:
            self._ordered = KVTable(found).encode()
        return self._ordered

    def copy(self) -> KvTable:
        """Return the present table, for the file."""
        return {namespace: dict(found) for namespace, found in self._table.items()}


def _chars(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)


def _grows_over(chars: int, more: int, most: int) -> bool:
    """Return whether a change exceeds the limit; a table over it may shrink."""
    return more > 0 and chars + more > most
