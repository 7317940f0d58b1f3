"""TransactionProducer: messages that consumers see only after a commit.

    1  the broker stores a half message, invisible to consumers (TRAN_MSG, PGROUP)
    2  the application runs its local transaction and decides: commit or rollback
    3  END_TRANSACTION tells the broker
    4  without it, the broker checks back with any producer of the group (CHECK_TRANSACTION_STATE)

Source: client/impl/producer/DefaultMQProducerImpl.java (sendMessageInTransaction,
checkTransactionState, endTransaction), client/producer/TransactionMQProducer.java.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from threading import Lock

from protocol.codes import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK, RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.transaction import CheckTransactionStateHeader, EndTransactionHeader
from protocol.message import RecordError, decode_records
from protocol.message_id import parse_message_id
from protocol.properties import CHECK_IMMUNITY_TIME_IN_SECONDS, PGROUP, TRAN_MSG
from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.arguments import MS_MAX, check_instance, check_integer, names_checked
from troupemq.client.callbacks import check_callback, unknown_result
from troupemq.client.connection.calls import Call, Flow
from troupemq.client.connection.client import ClientCore
from troupemq.client.connection.lifecycle import Work, seconds_to
from troupemq.client.connection.task_thread import Workers
from troupemq.client.errors import BadAnswer, ClientError, MessageIllegal, ResultUnknown
from troupemq.client.log import client_logger
from troupemq.client.message import (
    Message,
    MessageQueue,
    MessageView,
    SendResult,
    SendStatus,
    view_of,
)
from troupemq.client.producing.making import SendMaker
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.queue_choice import QueueChoice
from troupemq.client.producing.trace import Tracing
from troupemq.client.settings import ProducerSettings

log = client_logger(__name__)

CHECK_THREADS_MAX = 1000
CHECKS_OPEN_MAX = 2000
"""Limit of check-backs that wait or run; further ones are dropped, and the broker repeats them."""
CHECKS_BYTES_MAX = 64 << 20
"""Limit of their messages, of which brokers take 4 MiB each by default."""


class TransactionState(Enum):
    """Decision about a local transaction. The values are the Java client's names."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"
    """Undecided: the broker checks back later, at most 15 times by default."""


_VERDICTS = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: TRANSACTION_NONE,
}

Execute = Callable[[Message, str], TransactionState | None]
"""The local transaction: takes the message and its id, which is the transaction id.

None and an exception mean UNKNOWN.
"""

Check = Callable[[MessageView], TransactionState | None]
"""Answer to a check-back: takes the half message; its `message_id` is the transaction id.

The broker may ask any producer of the group, also one that started later. None and an exception
mean UNKNOWN.
"""


@dataclass(frozen=True)
class TransactionResult:
    """Result of a send in a transaction."""

    half: SendResult
    state: TransactionState
    told: bool
    """Whether the broker has confirmed the commit or rollback; otherwise it checks back."""

    error: Exception | None = None
    """Exception that `execute` raised."""

    @property
    def transaction_id(self) -> str:
        """Message id, the same before and after the commit."""
        return self.half.message_id


class TransactionWork(SendMaker):
    """A producer that ends transactions and answers check-backs; the application decides."""

    group: str
    _core: ClientCore
    _tracing: Tracing | None

    def _ending(
        self, message: Message, half: SendResult, state: TransactionState, error: Exception | None
    ) -> Flow[TransactionResult]:
        """Tell the broker the end of a transaction, after the call of `execute`."""
        remark = f"executeLocalTransactionBranch exception: {error!r}" if error else None
        told = yield from self._telling(end_of(self.group, half, state), state, remark)
        if self._tracing is not None:
            name = half.queue.broker_name
            self._tracing.transaction_ended(message, half.message_id, name, state.value, False)
        return TransactionResult(half, state, told, error)

    def _telling(
        self, header: EndTransactionHeader, state: TransactionState, remark: str | None = None
    ) -> Flow[bool]:
        """Send the end of a transaction; return whether the broker confirmed it.

        Brokers do not answer UNKNOWN, so that this asks for nothing.
        """
        command = RemotingCommand(RequestCode.END_TRANSACTION, header.encode(), remark=remark)
        try:
            address = self._core.routes.master(header.broker_name or "")
            if state is TransactionState.UNKNOWN:
                self._core.remoting.oneway(address, command)
                return False
            yield Call(address, command, self.settings.send_timeout_ms)
        except ClientError as error:
            hint = "the broker will check back"
            log.warning(
                "transaction end unconfirmed", message_id=header.msg_id, error=str(error), hint=hint
            )
            return False
        return True

    def _answer_check(
        self,
        header: CheckTransactionStateHeader,
        view: MessageView,
        address: str,
        state: TransactionState,
        error: Exception | None,
    ) -> None:
        """Answer a check-back, after the call of `check`. Raises ClientError."""
        answer = answer_of(self.group, header, view, state)
        remark = f"checkLocalTransactionState Exception: {error!r}" if error else None
        command = RemotingCommand(RequestCode.END_TRANSACTION, answer.encode(), remark=remark)
        self._core.remoting.oneway(address, command)
        if self._tracing is not None:
            self._tracing.transaction_ended(view, view.message_id, address, state.value, True)


@partial(names_checked, settings=ProducerSettings)
class TransactionProducer(Producer, TransactionWork):
    """A Producer that also sends in transactions; for any thread.

        def pay(message, transaction_id):
            accounts.pay(message.keys[0], transaction_id)
            return TransactionState.COMMIT

        def was_it_paid(message):
            paid = accounts.knows(message.message_id)
            return TransactionState.COMMIT if paid else TransactionState.ROLLBACK

        with TransactionProducer("payments", was_it_paid) as producer:
            producer.send_in_transaction(Message("Paid", b"one book", keys="order-1"), pay)

    `stop` waits for running checks.
    """

    def __init__(
        self,
        group: str,
        check: Check,
        namesrv: str | Sequence[str] | None = None,
        *,
        settings: ProducerSettings | None = None,
        choose: QueueChoice | None = None,
        instance_name: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        check_threads: int = 1,
    ) -> None:
        """Take the arguments of Producer; `check_threads` own threads call `check`."""
        check_callback(check, "check", "message")
        check_integer(check_threads, 1, CHECK_THREADS_MAX, "check_threads")
        super().__init__(
            group,
            namesrv,
            settings=settings,
            choose=choose,
            instance_name=instance_name,
            credentials=credentials,
            tls=tls,
        )
        self._check_state = check
        self._checks = Workers("troupemq-check", check_threads)
        self._open_checks = self._open_bytes = 0
        self._checks_lock = Lock()
        self._core = self._client
        self._core.serves[RequestCode.CHECK_TRANSACTION_STATE] = self._asked

    def _begin(self) -> None:
        self._checks.start()
        super()._begin()

    def _work(self) -> Work:
        return {**super()._work(), "checks": lambda: self._open_checks}

    def _finish(self, deadline_s: float) -> None:
        self._checks.stop(seconds_to(deadline_s))
        super()._finish(deadline_s)

    def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
        check_after_s: int | None = None,
    ) -> TransactionResult:
        """Store a half message, call `execute`, and commit or roll back as it returns.

        Raises what `send` raises; `execute` was then not called. If the status of the half message
        is not OK, it is rolled back without calling `execute`. `check_after_s` is the time before
        the first check-back. [default: the broker's transactionTimeOut]
        """
        check_callback(execute, "execute", "message", "transaction_id")
        prepared = half_of(message, self.group, check_after_s)
        half = self.send(prepared, timeout_ms, queue=queue)
        end_of(self.group, half, TransactionState.UNKNOWN)  # raises before `execute` is called
        state, error = TransactionState.ROLLBACK, None
        if half.status is SendStatus.OK:
            state, error = self._call(
                "execute", lambda: execute(message, half.message_id), half.message_id
            )
        return self._client.run(self._ending(message, half, state, error))

    def _call(
        self, what: str, decide: Callable[[], TransactionState | None], message_id: str
    ) -> tuple[TransactionState, Exception | None]:
        try:
            return decided(decide(), what), None
        except Exception as error:  # an application error: its progress is unknown
            log_undecided(self.group, message_id, error)
            return TransactionState.UNKNOWN, error

    # --- check-backs

    def _asked(self, command: RemotingCommand) -> None:
        """Queue a check-back, on the I/O thread."""
        header = CheckTransactionStateHeader.decode(command.fields)
        address, body = self._client.asked_by, bytes(command.body or b"")
        with self._checks_lock:
            is_full = self._open_bytes + len(body) > CHECKS_BYTES_MAX
            if is_full or self._open_checks >= CHECKS_OPEN_MAX or not self.is_running:
                return
            self._open_checks += 1
            self._open_bytes += len(body)
        self._checks.run(lambda: self._answer(header, body, address))

    def _answer(self, header: CheckTransactionStateHeader, body: bytes, address: str) -> None:
        try:
            if not self.is_running:
                return  # the broker checks back with another producer
            view = checked_half(body, self._client.routes.name_of(address), self.group)
            if view is not None:
                self._decide(header, view, address)
        except ClientError as error:
            hint = "the broker will check back again"
            log.warning("check-back failed", address=address, error=str(error), hint=hint)
        finally:
            with self._checks_lock:
                self._open_checks -= 1
                self._open_bytes -= len(body)

    def _decide(self, header: CheckTransactionStateHeader, view: MessageView, address: str) -> None:
        state, error = self._call("check", lambda: self._check_state(view), view.message_id)
        self._answer_check(header, view, address, state, error)


# --- without threads and event loops


def half_of(message: Message, group: str, check_after_s: int | None) -> Message:
    """Return the half message of a transaction. Raises ArgumentIllegal, MessageIllegal."""
    check_instance(message, Message, "what is sent is a Message")
    if message.delay_level:
        raise MessageIllegal("a message of a transaction cannot be delayed")
    system = {**message.system_properties, TRAN_MSG: "true", PGROUP: group}
    if check_after_s is not None:
        check_integer(check_after_s, 0, MS_MAX, "check_after_s")
        system[CHECK_IMMUNITY_TIME_IN_SECONDS] = str(check_after_s)
    return replace(message, system_properties=system)


def decided(state: object, what: str) -> TransactionState:
    """Return the state that `what` has returned; None is UNKNOWN. Raises ResultUnknown."""
    if state is None:
        return TransactionState.UNKNOWN
    if not isinstance(state, TransactionState):
        raise unknown_result(state, what, "it returns a TransactionState, or None: UNKNOWN")
    return state


def log_undecided(group: str, message_id: str, error: Exception) -> None:
    log.error(
        "transaction undecided",
        group=group,
        message_id=message_id,
        error=f"{type(error).__name__}: {error}",
        next_try="at the broker's next check-back",
        exc_info=not isinstance(error, ResultUnknown),
    )


def end_of(group: str, half: SendResult, state: TransactionState) -> EndTransactionHeader:
    """Return the end of a transaction, after the call of `execute`. Raises BadAnswer."""
    try:
        _, offset = parse_message_id(half.offset_message_id)
    except ValueError as error:
        raise BadAnswer(f"a half message without a valid id: {error}") from None
    return EndTransactionHeader(
        producer_group=group,
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=offset,
        commit_or_rollback=_VERDICTS[state],
        msg_id=half.message_id,
        broker_name=half.queue.broker_name,
    )


def answer_of(
    group: str, asked: CheckTransactionStateHeader, view: MessageView, state: TransactionState
) -> EndTransactionHeader:
    """Return the answer to a check-back."""
    return EndTransactionHeader(
        producer_group=group,
        tran_state_table_offset=asked.tran_state_table_offset,
        commit_log_offset=asked.commit_log_offset,
        commit_or_rollback=_VERDICTS[state],
        msg_id=view.message_id,
        from_transaction_check=True,
        transaction_id=asked.transaction_id,
        broker_name=asked.broker_name,
    )


def checked_half(body: bytes, broker_name: str, group: str) -> MessageView | None:
    """Return the half message of a check-back; None for one of another group. Raises BadAnswer."""
    try:
        (record,) = decode_records(body)
    except (RecordError, ValueError) as error:
        raise BadAnswer(f"check-back without a valid message: {error}") from None
    view = view_of(record, MessageQueue(record.topic, broker_name, record.queue_id))
    if view.properties.get(PGROUP) != group:
        log.warning("check-back of another group ignored", group=view.properties.get(PGROUP))
        return None
    return view
