"""Headers of transactions: commit or rollback by the producer, and check-back by the broker.

Source: common/protocol/header/EndTransactionRequestHeader.java,
CheckTransactionStateRequestHeader.java.
"""

from protocol.codes import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK, ResponseCode
from protocol.errors import RemoteError
from protocol.headers.fields import COMMAND_EXCEPTION, Header, wire, wire_long
from protocol.json_body import value


@value
class EndTransactionHeader(Header):
    """Commit (8), roll back (12) or unknown (0) for a half message."""

    producer_group: str = wire("producerGroup")
    tran_state_table_offset: int = wire_long("tranStateTableOffset")
    commit_log_offset: int = wire_long("commitLogOffset")
    commit_or_rollback: int = wire("commitOrRollback")
    msg_id: str | None = wire("msgId", default=None)
    from_transaction_check: bool | None = wire("fromTransactionCheck", default=False)
    transaction_id: str | None = wire("transactionId", default=None)
    broker_name: str | None = wire("bname", default=None)

    def check(self) -> None:
        known = (TRANSACTION_NONE, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
        if self.commit_or_rollback not in known:
            remark = f"{COMMAND_EXCEPTION}: commitOrRollback field wrong"
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)


@value
class CheckTransactionStateHeader(Header):
    """Check-back of a half message. The body is its record."""

    tran_state_table_offset: int = wire_long("tranStateTableOffset")
    commit_log_offset: int = wire_long("commitLogOffset")
    msg_id: str | None = wire("msgId", default=None)
    transaction_id: str | None = wire("transactionId", default=None)
    offset_msg_id: str | None = wire("offsetMsgId", default=None)
    broker_name: str | None = wire("bname", default=None)


@value
class ResumeCheckHalfMessageHeader(Header):
    """Request to check a discarded half message again."""

    msg_id: str | None = wire("msgId", default=None)


@value
class OpenTransactionsHeader(Header):
    """Query for open transactions from a physical offset on: GET_OPEN_TRANSACTIONS."""

    after_offset: int = wire_long("afterOffset", default=-1)
    max_count: int = wire("maxCount", default=1000)
