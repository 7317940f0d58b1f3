"""List of open transactions, for operators.

Owns: nothing; reads the transaction table and the commit log.
Receives: Request from connections; AskFigures from MetricsPort; ListOpen from OpenTransactionView.
Sends: ListOpen to HalfMessageList; answers to the requesters.
"""

from typing import ClassVar

from actors.engine.actor import Actor, AskFigures, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.network.request import Request, Responder, serves
from actors.transactions.half_messages import HalfMessage
from actors.transactions.messages import ListOpen, OpenHalves
from protocol.bodies_own import OpenTransaction, OpenTransactions
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.transaction import OpenTransactionsHeader
from protocol.host import host_text
from protocol.message_id import offset_message_id
from storage.message_store import MessageStore

LISTED_MAX = 1000
"""Maximum entries of one answer; the next request begins after the last one."""


class OpenTransactionView(Responder):
    """Actor on the event loop, like the table's owner, that selects the open transactions."""

    def __init__(self, store: MessageStore, half_message_list: ActorAddress) -> None:
        super().__init__()
        self._store = store
        self._half_message_list = half_message_list

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        table = self._store.transaction_table
        found = table.pending(LISTED_MAX)
        message.reply(OpenHalves(table.pending_count, [each.physical_offset for each in found]))

    @serves(RequestCode.GET_OPEN_TRANSACTIONS)
    def list_open(self, request: Request) -> RemotingCommand | None:
        """Select the half messages after an offset of the log; HalfMessageList reads them."""
        header = OpenTransactionsHeader.decode(request.command.fields)
        limit = min(max(header.max_count, 0), LISTED_MAX)
        table = self._store.transaction_table
        found = table.pending(limit, after_offset=header.after_offset)
        offsets = [each.physical_offset for each in found]
        self._half_message_list.tell(ListOpen(request, table.pending_count, offsets))
        return None


class HalfMessageList(Actor):
    """Actor on a thread, because half messages may be cold."""

    where: ClassVar[Where] = "thread"

    def __init__(self, store: MessageStore) -> None:
        super().__init__()
        self._store = store

    @handles(ListOpen, reads_only=True)
    def on_list(self, message: ListOpen) -> None:
        """Answer with the half messages; those that cannot be read are left out."""
        found = map(self._read, message.offsets)
        body = OpenTransactions(message.count, [each for each in found if each is not None])
        message.request.answer(body=body.encode())

    def _read(self, offset: int) -> OpenTransaction | None:
        record = self._store.commit_log.read_record(offset, self._store.damage)
        if record is None:
            return None
        half = HalfMessage(record)
        return OpenTransaction(
            producer_group=half.group or "",
            topic=half.text(b"REAL_TOPIC") or "",
            message_id=half.text(b"UNIQ_KEY") or "",
            offset_message_id=offset_message_id(record.store_host, offset),
            physical_offset=offset,
            born_timestamp=record.born_timestamp,
            store_timestamp=record.store_timestamp,
            born_host=host_text(record.born_host),
            check_times=half.check_times or 0,
        )
