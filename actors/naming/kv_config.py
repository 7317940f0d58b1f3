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
    KV_ORDERED_CHARS_MAX,
    KV_VALUE_CHARS_MAX,
    refuse,
)
from protocol.bodies import KVTable
from storage.tables.kv_config import KvTable

TOO_MUCH = "too much for the settings of clients"
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class KvConfig:
    """Owned by one actor."""

    def __init__(self, table: KvTable | None = None) -> None:
        """`table` is the file's, and may be longer than what is taken here."""
        self._table: KvTable = table or {}
        self._entries = sum(map(len, self._table.values()))
        self._chars = sum(map(self._chars_of, self._table))
        self._ordered_chars = self._chars_of(ORDER_TOPIC_CONFIG)
        self._ordered: bytes | None = None

    def _chars_of(self, namespace: str) -> int:
        found = self._table.get(namespace, {})
        return sum(_chars(namespace, key, value) for key, value in found.items())

    def put(self, namespace: str, key: str, value: str) -> None:
        """Raises RemoteError where there is no room for it."""
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
                TOO_MUCH, f"at most {KV_ENTRIES_MAX} entries with {KV_CHARS_MAX} characters in all"
            )
        if namespace == ORDER_TOPIC_CONFIG and _grows_over(
            self._ordered_chars, more, KV_ORDERED_CHARS_MAX
        ):
            refuse(TOO_MUCH, f"at most {KV_ORDERED_CHARS_MAX} characters of {ORDER_TOPIC_CONFIG}")
        if namespace not in self._table:
            self._make_room()
        self._table.setdefault(namespace, {})[key] = value
        self._note(namespace, int(old is None), more)

    def _make_room(self) -> None:
        """For a namespace more. Raises RemoteError where there is none."""
        if len(self._table) < KV_NAMESPACES_MAX:
            return
        for namespace, found in self._table.items():
            if not found and namespace != ORDER_TOPIC_CONFIG:  # brokers are told that it is empty
                del self._table[namespace]
                return
        refuse(
            TOO_MUCH,
            f"there are {len(self._table)} namespaces already: at most {KV_NAMESPACES_MAX}",
        )

    def _note(self, namespace: str, more_entries: int, more_chars: int) -> None:
        self._entries += more_entries
        self._chars += more_chars
        if namespace == ORDER_TOPIC_CONFIG:
            self._ordered_chars += more_chars
            self._ordered = None

    def get(self, namespace: str, key: str) -> str | None:
        """The value; None without such a key."""
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """An empty namespace stays, as in 4.9.7, while there is room: it is answered with an empty
        table."""
        old = self._table.get(namespace, {}).pop(key, None)
        if old is not None:
            self._note(namespace, -1, -_chars(namespace, key, old))

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All entries of a namespace; None when nothing was ever put there."""
        return self._table.get(namespace)

    @property
    def has_too_much_order(self) -> bool:
        """Whether the file had more than a broker can be told of."""
        return self._ordered_chars > KV_ORDERED_CHARS_MAX

    def ordered(self) -> bytes | None:
        """What brokers are told of ordered topics: a KVTable. None where nothing was ever put
        there, or too much."""
        found = self._table.get(ORDER_TOPIC_CONFIG)
        if found is None or self.has_too_much_order:
            return None
        if self._ordered is None:
            self._ordered = KVTable(found).encode()
        return self._ordered

    def copy(self) -> KvTable:
        """What the file holds, as it is now."""
        return {namespace: dict(found) for namespace, found in self._table.items()}


def _chars(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)


def _grows_over(chars: int, more: int, most: int) -> bool:
    """A table that is too long already may become shorter."""
    return more > 0 and chars + more > most
