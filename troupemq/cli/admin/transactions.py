"""`transactions`: those that nobody has ended, how old they are, and whose they are."""

from collections.abc import Iterator
from time import time_ns

from protocol.bodies_own import OpenTransaction, OpenTransactions
from protocol.codes import RequestCode
from protocol.headers.transaction import OpenTransactionsHeader, ResumeCheckHalfMessageHeader
from troupemq.cli.admin.command import BROKER, CLUSTER, command, option
from troupemq.cli.admin.output import Output, Row, Time
from troupemq.cli.admin.session import Session

SECTION = "Transactions"


@command(
    "transactions",
    SECTION,
    BROKER,
    CLUSTER,
    option("g", "producerGroup", "Of this producer group only."),
)
def transactions(
    session: Session,
    out: Output,
    *,
    broker_addr: str | None,
    cluster_name: str | None,
    producer_group: str | None,
) -> None:
    """List the transactions that are neither committed nor rolled back, oldest first.

    Of our brokers only: RocketMQ keeps no table of them.
    """
    now_ms = time_ns() // 1_000_000
    rows = (
        _row(address, each, now_ms)
        for address in session.targets(broker_addr, cluster_name)
        for each in _open_at(session, out, address)
        if producer_group in (None, each.producer_group)
    )
    out.table(rows, "No transaction is open.")


def _open_at(session: Session, out: Output, address: str) -> Iterator[OpenTransaction]:
    """All of one broker's, as many answers as that takes."""
    behind = -1
    code = RequestCode.GET_OPEN_TRANSACTIONS
    while True:
        found: list[OpenTransaction] = []
        with out.attempt():
            header = OpenTransactionsHeader(behind)
            found = session.read(OpenTransactions, address, code, header).transactions
        if not found:
            return
        yield from found
        behind = found[-1].physical_offset


def _row(address: str, each: OpenTransaction, now_ms: int) -> Row:
    return {
        "producer_group": each.producer_group,
        "topic": each.topic,
        "message_id": each.message_id,
        "offset_message_id": each.offset_message_id,
        "age_s": (now_ms - each.born_timestamp) // 1000,
        "born_ms": Time(each.born_timestamp),
        "checked": each.check_times,
        "producer": each.born_host,
        "broker": address,
    }


@command(
    "resumeTransaction",
    SECTION,
    option("b", "brokerAddr", "The broker.", required=True, metavar="HOST:PORT"),
    option("i", "msgId", "The broker's id of what was given up.", required=True),
)
def resume_transaction(session: Session, out: Output, *, broker_addr: str, msg_id: str) -> None:
    """Have the producers asked again about a transaction that was given up."""
    header = ResumeCheckHalfMessageHeader(msg_id)
    session.ask(broker_addr, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
    out.done(f"{msg_id} will be checked again.", broker_address=broker_addr, message_id=msg_id)
