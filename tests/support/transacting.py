"""Transactions at a simulated broker, step by step: half messages, verdicts, questions.

A producer that goes on by itself is in `transactors.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from actors.config import BrokerConfig
from protocol.bodies import HeartbeatData, ProducerData
from protocol.codes import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, RequestCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.headers.transaction import CheckTransactionStateHeader, EndTransactionHeader
from protocol.message import MessageRecord, decode_record
from protocol.properties import find_pairs
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from troupemq.testing.virtual_broker import LocalClient

COMMIT, ROLLBACK, UNKNOWN = TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, 0
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
MAX_TIME = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = "producers"
INTERVAL_MS = 60_000


@dataclass
class Question:
    """CHECK_TRANSACTION_STATE, as it came."""

    header: CheckTransactionStateHeader
    half: MessageRecord

    @classmethod
    def of(cls, command: RemotingCommand) -> Self:
        header = CheckTransactionStateHeader.decode(command.fields)
        return cls(header, decode_record(command.body or b""))

    @property
    def properties(self) -> dict[bytes, bytes]:
        """Properties of the half message in a check-back."""
        return dict(find_pairs(self.half.properties))


def half_text(key: str, more: Mapping[str, object]) -> str:
    """The properties of a half message."""
    pairs = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": GROUP, "WAIT": "true", **more}
    return "\x02".join(f"{name}\x01{value}" for name, value in pairs.items())


def half(made: SimulatedBroker, key: str = "K", **options: Any) -> MessageRecord:
    """Sends a half message; what is stored of it."""
    options.setdefault("born_timestamp", made.clock.now_ms())
    return made.stored(made.send(**sending(key, **options)))


def sending(
    key: str, body: bytes | None = None, *, properties: dict[str, object] | None = None, **send: Any
) -> dict[str, Any]:
    """Return the arguments of a send of a half message, born now by default."""
    body = b"body of " + key.encode() if body is None else body
    return {"body": body, "properties": half_text(key, properties or {}), "sys_flag": 4, **send}


class Place(Protocol):
    """Position of a half message, from its record or the answer to its send."""

    @property
    def queue_offset(self) -> int: ...

    @property
    def physical_offset(self) -> int: ...


def end_command(
    half: Place | Question,
    outcome: int,
    *,
    oneway: bool = False,
    **fields: Any,
) -> RemotingCommand:
    """END_TRANSACTION for a half message, or as the answer to a question about it."""
    if isinstance(half, Question):
        places = half.header.tran_state_table_offset, half.header.commit_log_offset
    else:
        places = half.queue_offset, half.physical_offset
    header = EndTransactionHeader(
        GROUP, *places, outcome, from_transaction_check=isinstance(half, Question)
    )
    return RemotingCommand(
        RequestCode.END_TRANSACTION,
        replace(header, **fields).encode(),
        flag=ONEWAY_FLAG if oneway else 0,
    )


def end(
    made: SimulatedBroker, record: MessageRecord | Question, outcome: int, **fields: Any
) -> RemotingCommand:
    """Ends a transaction; the answer."""
    answer = made.ask(end_command(record, outcome, **fields))
    made.system.drain()
    return answer


def producing(made: SimulatedBroker, port: int = 7, group: str = GROUP) -> LocalClient:
    """A client that has said that it is a producer; it keeps the questions that come."""
    client = made.new_client(port)
    beat(client, group)
    return client


def beat(client: LocalClient, group: str = GROUP) -> None:
    """A producer says that it is there."""
    body = HeartbeatData("client", producer_data_set=[ProducerData(group)]).encode()
    command = RemotingCommand(RequestCode.HEART_BEAT, body=body)
    assert client.request(command, timeout_s=120).code == 0


def questions(client: LocalClient) -> list[Question]:
    """Return the check-backs of a producer since the last call."""
    commands, client.received = client.received, []
    return [Question.of(command) for command in commands]


def broker(seed: int = 1, *, store: Any = STORE, **settings: Any) -> SimulatedBroker:
    """A broker with one topic."""
    config: BrokerConfig = replace(BROKER, **settings)
    made = SimulatedBroker(seed, config=config, store_config=store)
    made.make_topic()
    return made


def round_of_checks(made: SimulatedBroker, count: int = 1) -> None:
    """Lets time pass until the next round is over."""
    made.system.advance(count * INTERVAL_MS + 100)


def of_topic(made: SimulatedBroker, topic: str) -> list[MessageRecord]:
    """All records of a topic in the log, whether consumers can see it or not."""
    return [record for record in made.records() if record.topic == topic]


def pending_count(made: SimulatedBroker) -> int:
    """Return the number of pending transactions in the table."""
    made.system.drain()
    return made.broker.store.transaction_table.pending_count
