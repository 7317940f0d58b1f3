"""Base of Namesrv that serves its key-value settings.

Owns: the KvConfig.
Receives: Request from connections, FileWritten from config_writer.
Sends: WriteFile to config_writer; LongAnswer to LongAnswers.

Source: namesrv/processor/DefaultRequestProcessor.java.

KvConfig has the settings by namespace. The name server itself uses one namespace: topics in
ORDER_TOPIC_CONFIG are ordered.

Source: namesrv/kvconfig/KVConfigManager.java.
"""

from collections.abc import Mapping, Sequence

from actors.engine.actor_address import ActorAddress
from actors.engine.server_log import get_logger
from actors.naming.table_limits import (
    KV_CHARS_MAX,
    KV_ENTRIES_MAX,
    KV_KEY_CHARS_MAX,
    KV_LISTED_CHARS_MAX,
    KV_NAMESPACES_MAX,
    KV_ORDERED_CHARS_MAX,
    KV_VALUE_CHARS_MAX,
    refuse,
)
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import LongAnswer, Request
from actors.network.request import serves
from actors.tables.persisted import BatchedTable, Then
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import (
    GetKvConfigResponseHeader,
    KvConfigHeader,
    KvNamespaceHeader,
    PutKvConfigHeader,
)
from protocol.table_rules import key_fault
from storage.tables.kv_config import KvTable, format_kv, parse_kv

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


log = get_logger(__name__)


class KvServer(BatchedTable):
    """Actor on the loop."""

    def __init__(self, path: str, config_writer: ActorAddress, long_answers: ActorAddress) -> None:
        super().__init__(path, config_writer)
        self.kv = KvConfig()
        self._long_answers = long_answers
        self._is_encoding = False

    def load_kv(self) -> None:
        """Load the file, in `on_start`."""
        loaded = self.load(parse_kv)
        self.kv = KvConfig(loaded.value)
        if self.kv.has_too_much_order:
            log.warning("ordered topics withheld", namespace=ORDER_TOPIC_CONFIG)
        if loaded.is_to_be_saved:
            self.changed()
            self.save_changes()

    @serves(RequestCode.PUT_KV_CONFIG)
    def put_kv(self, request: Request) -> None:
        fields = request.command.fields or {}
        if "namespace" not in fields or "key" not in fields:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        header = PutKvConfigHeader.decode(fields)
        if fault := key_fault(header.namespace) or key_fault(header.key):
            raise RemoteError(ResponseCode.SYSTEM_ERROR, fault)
        self.begin_change()
        self.kv.put(header.namespace, header.key, header.value)
        self._is_put(request)

    @serves(RequestCode.GET_KV_CONFIG)
    def get_kv(self, request: Request) -> RemotingCommand:
        header = KvConfigHeader.decode(request.command.fields)
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return request.command.answer(ResponseCode.QUERY_NOT_FOUND, {}, remark=remark)
        return request.command.answer(fields=GetKvConfigResponseHeader(value).encode())

    @serves(RequestCode.DELETE_KV_CONFIG)
    def delete_kv(self, request: Request) -> None:
        header = KvConfigHeader.decode(request.command.fields)
        self.begin_change()
        self.kv.delete(header.namespace, header.key)
        self._is_put(request)

    @serves(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def kv_namespace(self, request: Request) -> RemotingCommand | None:
        """Return all entries of a namespace; LongAnswers sends a long answer, one at a time."""
        namespace = KvNamespaceHeader.decode(request.command.fields).namespace
        entries = self.kv.namespace(namespace)
        if entries is None:
            raise RemoteError(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
            )
        body = KVTable(dict(entries))
        if len(entries) <= ENCODED_HERE_MAX and self.kv.chars_of(namespace) <= KV_LISTED_CHARS_MAX:
            return request.command.answer(body=body.encode())
        if self._is_encoding:
            remark = "another long list is written: ask again later"
            raise LimitReached(ResponseCode.SYSTEM_BUSY, remark, "KV list limit reached")
        self._is_encoding = True
        self._long_answers.tell(LongAnswer(request, body, self._encoded))
        return None

    def _encoded(self) -> None:
        """Note that the long list is answered. Any thread."""
        self._is_encoding = False

    # --- the file

    def _is_put(self, request: Request) -> None:
        """Answer the request once its change is on disk."""
        self.changed(lambda refusal: self.answer_saved(request, refusal))

    def write(self, thens: Sequence[Then]) -> None:
        """Save a copy; the writer formats it, as 64 MiB take half a second."""
        table = self.kv.copy()
        self.save(lambda: format_kv(table), *thens)

    def save_changes(self) -> None:
        """Save, but only after the previous save has ended.

        Otherwise copies of 100,000 entries would pile up before the writer.
        """
        if self._written_serial >= self._serial:
            super().save_changes()

    def on_failure(self, *reason: object) -> None:
        """Save at once, even while another save is in progress."""
        super().save_changes()
        super().on_failure(*reason)
