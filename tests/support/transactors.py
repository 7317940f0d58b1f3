"""A simulated producer of transactions: half messages, decisions, answers to check-backs.

The decisions are in the world, like a database that all producers of the group share. Each of them
can thus answer.

Source: client/impl/producer/DefaultMQProducerImpl.java (sendMessageInTransaction,
checkTransactionState, endTransaction).
"""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from protocol.codes import TRANSACTION_PREPARED, RequestCode
from protocol.frame import RemotingCommand
from protocol.properties import PGROUP, TRAN_MSG, UNIQ_KEY
from tests.support.producers import Parcel, Producer, Sent
from tests.support.transacting import UNKNOWN, Question, end_command

if TYPE_CHECKING:
    from tests.support.world import World

REPEATS_MS = ((0,), (0,), (0, 0), (0, 3000))
"""Delay between a decision and its report."""


@dataclass(slots=True)
class Verdicts:
    """Decision of each transaction, by its body."""

    outcomes: dict[bytes, int] = field(default_factory=dict)
    """UNKNOWN: it is never decided."""
    local: dict[bytes, int | None] = field(default_factory=dict)
    """Report straight after the send; None: no report."""
    unknown_left: dict[bytes, int] = field(default_factory=dict)
    """To how many questions the answer is UNKNOWN before it is the outcome."""
    asked: list[bytes] = field(default_factory=list)
    """About which messages producers were asked."""
    halves: dict[bytes, Sent] = field(default_factory=dict)
    """Half messages with acknowledged sends."""

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
        """Keep the half message apart: it must stay invisible before its commit."""
        super()._acknowledged(parcel, answer)
        (body,) = parcel.bodies
        sent = self.verdicts.halves[body] = self.world.acknowledged.pop(body)
        local = self.verdicts.local[body]
        if local is not None:
            self._end(sent, body, local)

    def on_notice(self, command: RemotingCommand) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            question = Question.of(command)
            body = question.half.body
            self._end(question, body, self.verdicts.answer(body))

    def _end(self, half: Sent | Question, body: bytes, verdict: int) -> None:
        """Some say it twice, some long after; a few want to hear that it arrived."""
        fields = {"producer_group": self.group, "msg_id": body.decode()}
        random = self.world.random
        for delay_ms in random.choice(REPEATS_MS):
            command = end_command(half, verdict, oneway=random.random() < 0.9, **fields)
            self.after(delay_ms, partial(self.tell, command))
