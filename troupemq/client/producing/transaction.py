"""TransactionProducer: messages that become visible only when something else has happened too.

    1  a half message is stored, invisible to consumers (TRAN_MSG, PGROUP)
    2  the application does its part: commit or roll back
    3  END_TRANSACTION tells the broker
    4  a broker that has not heard of it asks any producer of the group (CHECK_TRANSACTION_STATE)

Source: client/impl/producer/DefaultMQProducerImpl.java (sendMessageInTransaction,
checkTransactionState, endTransaction), client/producer/TransactionMQProducer.java.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from threading import Lock

from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.transaction import CheckTransactionStateHeader, EndTransactionHeader
from protocol.message import RecordError, decode_records
from protocol.message_id import parse_message_id
from protocol.properties import CHECK_IMMUNITY_TIME_IN_SECONDS, PGROUP, TRAN_MSG
from protocol.signature import Credentials
from protocol.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from remoting.tls_options import Tls
from troupemq.client.arguments import MS_MAX, check_instance, check_integer, names_checked
from troupemq.client.callbacks import check_callback, unknown_result
from troupemq.client.connection.lifecycle import seconds_to
from troupemq.client.connection.workers import Workers
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
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.producer_settings import ProducerSettings
from troupemq.client.producing.queue_choice import QueueChoice

log = client_logger(__name__)

CHECK_THREADS_MAX = 1000
CHECKS_WAITING_MAX = 2000
"""Questions of brokers that wait for their turn; those beyond are asked again by the broker."""


class TransactionState(Enum):
    """What became of the application's part. The values are the Java client's words."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"
    """Not decided yet: the broker asks later, and gives up after some times."""


_VERDICTS = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: TRANSACTION_NONE,
}

Execute = Callable[[Message, str], TransactionState | None]
"""The application's part: gets the message and its id (the transaction's). None means UNKNOWN, and
so does an exception."""

Check = Callable[[MessageView], TransactionState | None]
"""What became of the transaction of this half message (`message_id`)? Asked by the broker, of any
producer of the group, also of one that was started later. None means UNKNOWN, and so does an
exception."""


@dataclass(frozen=True)
class TransactionResult:
    """A half message, what became of the application's part, and whether the broker knows."""

    half: SendResult
    state: TransactionState
    told: bool
    """True if the broker has confirmed a commit or rollback; else it will ask."""

    error: Exception | None = None
    """What the application's part raised."""

    @property
    def transaction_id(self) -> str:
        """The message's id, before and after its commit."""
        return self.half.message_id


@partial(names_checked, settings=ProducerSettings)
class TransactionProducer(Producer):
    """A Producer that also sends in transactions; for any number of threads.

        def pay(message, transaction_id):
            accounts.pay(message.keys[0], transaction_id)
            return TransactionState.COMMIT

        def was_it_paid(message):
            paid = accounts.knows(message.message_id)
            return TransactionState.COMMIT if paid else TransactionState.ROLLBACK

        with TransactionProducer("payments", was_it_paid) as producer:
            producer.send_in_transaction(Message("Paid", b"one book", keys="order-1"), pay)

    `stop` waits for the checks under way.
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
        """`check` is called by `check_threads` threads of its own."""
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
        self._checks_waiting = 0
        self._checks_lock = Lock()
        self._client.serves[RequestCode.CHECK_TRANSACTION_STATE] = self._asked

    def _begin(self) -> None:
        self._checks.start()
        super()._begin()

    def _finish(self, deadline_s: float) -> None:
        if not self._checks.stop(seconds_to(deadline_s)):
            log.warning("check still running at stop", group=self.group)
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
        """Stores a half message, calls `execute` and commits or rolls back as it says.

        Raises what `send` raises; then `execute` was not called. A half message that is stored, but
        not as safely as the broker's settings ask, is rolled back without it. `check_after_s` keeps
        the broker from asking earlier; else its own transactionTimeOut does.
        """
        check_instance(message, Message, "what is sent is a Message")
        check_callback(execute, "execute", "message", "transaction_id")
        if message.delay_level:
            raise MessageIllegal("a message of a transaction cannot be delayed")
        system = {**message.system_properties, TRAN_MSG: "true", PGROUP: self.group}
        if check_after_s is not None:
            check_integer(check_after_s, 0, MS_MAX, "check_after_s")
            system[CHECK_IMMUNITY_TIME_IN_SECONDS] = str(check_after_s)
        half = self.send(replace(message, system_properties=system), timeout_ms, queue=queue)
        state, error = TransactionState.ROLLBACK, None
        if half.status is SendStatus.OK:
            state, error = self._call(
                "execute", lambda: execute(message, half.message_id), half.message_id
            )
        _, offset = parse_message_id(half.offset_message_id)
        header = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=offset,
            commit_or_rollback=_VERDICTS[state],
            msg_id=half.message_id,
            broker_name=half.queue.broker_name,
        )
        remark = f"executeLocalTransactionBranch exception: {error!r}" if error else None
        told = self._tell(header, state, remark)
        if self._tracing is not None:
            name = half.queue.broker_name
            self._tracing.transaction_ended(message, half.message_id, name, state.value, False)
        return TransactionResult(half, state, told, error)

    def _call(
        self, what: str, decide: Callable[[], TransactionState | None], message_id: str
    ) -> tuple[TransactionState, Exception | None]:
        try:
            state = decide()
            if state is None:
                return TransactionState.UNKNOWN, None
            if not isinstance(state, TransactionState):
                raise unknown_result(state, what, "it returns a TransactionState, or None: UNKNOWN")
            return state, None
        except Exception as error:  # the application's: nobody knows how far it came
            log.error(
                "transaction undecided",
                group=self.group,
                message_id=message_id,
                error=f"{type(error).__name__}: {error}",
                next_try="the broker asks check again",
                exc_info=not isinstance(error, ResultUnknown),
            )
            return TransactionState.UNKNOWN, error

    def _tell(
        self, header: EndTransactionHeader, state: TransactionState, remark: str | None
    ) -> bool:
        """Whether the broker confirmed the end; UNKNOWN is not answered by brokers."""
        command = RemotingCommand(RequestCode.END_TRANSACTION, header.encode(), remark=remark)
        try:
            address = self._client.routes.master(header.broker_name or "")
            if state is TransactionState.UNKNOWN:
                self._client.remoting.oneway(address, command)
                return False
            self._client.remoting.ask(address, command, self.settings.send_timeout_ms)
        except ClientError as error:
            log.warning("the broker will ask", message_id=header.msg_id, error=str(error))
            return False
        return True

    # --- the broker asks

    def _asked(self, command: RemotingCommand) -> None:
        """On the I/O thread."""
        header = CheckTransactionStateHeader.decode(command.fields)
        address = self._client.asked_by
        with self._checks_lock:
            if self._checks_waiting >= CHECKS_WAITING_MAX or not self.is_running:
                return
            self._checks_waiting += 1
        body = bytes(command.body or b"")
        self._checks.run(lambda: self._answer(header, body, address))

    def _answer(self, header: CheckTransactionStateHeader, body: bytes, address: str) -> None:
        with self._checks_lock:
            self._checks_waiting -= 1
        if not self.is_running:
            return  # the broker asks another one
        try:
            view = _half_message(body, self._client.routes.name_of(address))
            if view.properties.get(PGROUP) != self.group:
                log.warning("asked for another group", group=view.properties.get(PGROUP))
                return
            self._decide(header, view, address)
        except ClientError as error:
            log.warning("the broker will ask again", address=address, error=str(error))

    def _decide(self, header: CheckTransactionStateHeader, view: MessageView, address: str) -> None:
        state, error = self._call("check", lambda: self._check_state(view), view.message_id)
        answer = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=_VERDICTS[state],
            msg_id=view.message_id,
            from_transaction_check=True,
            transaction_id=header.transaction_id,
            broker_name=header.broker_name,
        )
        remark = f"checkLocalTransactionState Exception: {error!r}" if error else None
        command = RemotingCommand(RequestCode.END_TRANSACTION, answer.encode(), remark=remark)
        self._client.remoting.oneway(address, command)
        if self._tracing is not None:
            self._tracing.transaction_ended(view, view.message_id, address, state.value, True)


def _half_message(body: bytes, broker_name: str) -> MessageView:
    """The half message that a broker asks about."""
    try:
        (record,) = decode_records(body)
    except (RecordError, ValueError) as error:
        raise BadAnswer(f"a question without its message: {error}") from None
    return view_of(record, MessageQueue(record.topic, broker_name, record.queue_id))
