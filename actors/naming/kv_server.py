"""Base of Namesrv that serves its key-value settings.

Owns: the KvConfig.
Receives: Request from connections, FileWritten from config_writer.
Sends: WriteFile to config_writer; LongAnswer to LongAnswers.

Source: namesrv/processor/DefaultRequestProcessor.java.
"""

from collections.abc import Sequence

from actors.engine.actor_address import ActorAddress
from actors.engine.server_log import get_logger
from actors.naming.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from actors.naming.table_limits import KV_LISTED_CHARS_MAX
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import LongAnswer
from actors.network.request import Request, serves
from actors.tables.persisted import BatchedTable, Then
from protocol.bodies import KVTable
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import LimitReached, RemoteError
from protocol.headers.namesrv import (
    GetKvConfigResponseHeader,
    KvConfigHeader,
    KvNamespaceHeader,
    PutKvConfigHeader,
)
from protocol.table_rules import key_fault
from storage.tables.kv_config import format_kv, parse_kv

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
