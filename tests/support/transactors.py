"""A producer of transactions in simulation: half messages, verdicts, answers to check-backs.

The verdicts lie in the world, as in a database that all producers of the group share: whoever is
asked knows them.

Source: client/impl/producer/DefaultMQProducerImpl.java (sendMessageInTransaction,
checkTransactionState, endTransaction).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.codes import RequestCode
from protocol.command import ONEWAY_FLAG, RemotingCommand
from protocol.headers.transaction import CheckTransactionStateHeader, EndTransactionHeader
from protocol.message import decode_record
from protocol.properties import PGROUP, TRAN_MSG, UNIQ_KEY
from protocol.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from tests.support.producers import Parcel, Producer, Sent

if TYPE_CHECKING:
    from tests.support.world import World

COMMIT, ROLLBACK, UNKNOWN = TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0


@dataclass(slots=True)
class Verdicts:
    """What is to become of each transaction, by its body."""

    outcomes: dict[bytes, int] = field(default_factory=dict)
    """UNKNOWN: nobody will ever know."""
    local: dict[bytes, int | None] = field(default_factory=dict)
    """What is said straight after the send; None: nothing."""
    unknown_left: dict[bytes, int] = field(default_factory=dict)
    """To how many questions the answer is UNKNOWN before it is the outcome."""
    asked: list[bytes] = field(default_factory=list)
    """About which messages producers were asked."""
    halves: dict[bytes, Sent] = field(default_factory=dict)
    """Half messages whose sends were acknowledged."""

    def answer(self, body: bytes) -> int:
        """To a question."""
        self.asked.append(body)
        left = self.unknown_left.get(body, 0)
        self.unknown_left[body] = left - 1
        return UNKNOWN if left > 0 else self.outcomes[body]


class Transactor(Producer):
    """Sends half messages; what is acknowledged of them is in `verdicts`, not in the world."""

    def __init__(
        self, world: "World", client_id: str, place: int, *, verdicts: Verdicts, group: str
    ) -> None:
        self.verdicts = verdicts
        super().__init__(world, client_id, place, group=group)

    def begin(
        self,
        body: bytes,
        outcome: int,
        *,
        local: int | None,
        unknown: int = 0,
        queue_id: int = 0,
        topic: str = "Topic",
    ) -> None:
        """A transaction: `local` is said straight away, the outcome after some questions."""
        self.verdicts.outcomes[body] = outcome
        self.verdicts.local[body] = local
        self.verdicts.unknown_left[body] = unknown
        properties = {UNIQ_KEY: body.decode(), TRAN_MSG: "true", PGROUP: self.group}
        self.parcels.append(Parcel([body], topic, queue_id, properties, TRANSACTION_PREPARED))
        self.do(self._go_on)

    def _acknowledged(self, parcel: Parcel, answer: RemotingCommand) -> None:
        """Not so in the world: nobody may see it before its commit."""
        super()._acknowledged(parcel, answer)
        (body,) = parcel.bodies
        sent = self.verdicts.halves[body] = self.world.acknowledged.pop(body)
        local = self.verdicts.local[body]
        if local is not None:
            self._end(sent.queue_offset, sent.physical_offset, body, local, asked=False)

    def on_notice(self, command: RemotingCommand) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            header = CheckTransactionStateHeader.decode(command.fields)
            body = decode_record(command.body or b"").body
            places = header.tran_state_table_offset, header.commit_log_offset
            self._end(*places, body, self.verdicts.answer(body), asked=True)

    def _end(
        self, queue_offset: int, physical_offset: int, body: bytes, verdict: int, *, asked: bool
    ) -> None:
        header = EndTransactionHeader(
            self.group,
            queue_offset,
            physical_offset,
            verdict,
            msg_id=body.decode(),
            from_transaction_check=asked,
        )
        code = RequestCode.END_TRANSACTION
        for _ in range(self.world.random.choice((1, 1, 2))):  # some say it twice
            self.tell(RemotingCommand(code, header.encode(), flag=ONEWAY_FLAG))
