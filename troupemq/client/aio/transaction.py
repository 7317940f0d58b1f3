"""Producer for an event loop that also sends in transactions."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.transaction import CheckTransactionStateHeader
from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.aio.producer import Producer
from troupemq.client.arguments import check_integer, names_checked
from troupemq.client.callbacks import check_coroutine
from troupemq.client.connection.calls import drive
from troupemq.client.connection.lifecycle import Work
from troupemq.client.errors import ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import Message, MessageQueue, MessageView, SendStatus
from troupemq.client.producing.queue_choice import QueueChoice
from troupemq.client.producing.transaction import (
    CHECKS_BYTES_MAX,
    CHECKS_OPEN_MAX,
    TransactionResult,
    TransactionState,
    TransactionWork,
    checked_half,
    decided,
    end_of,
    half_of,
    log_undecided,
)
from troupemq.client.settings import ProducerSettings

log = client_logger(__name__)

State = TransactionState | None
Execute = Callable[[Message, str], Awaitable[State]]
"""The local transaction, a coroutine function: takes the message and its transaction id."""

Check = Callable[[MessageView], Awaitable[State]]
"""Answer to a check-back, a coroutine function: takes the half message."""

CHECKS_MAX = 16
"""Default of the checks that run at once."""


@partial(names_checked, settings=ProducerSettings)
class TransactionProducer(Producer, TransactionWork):
    """A Producer that also sends in transactions.

        async def pay(message, transaction_id):
            await accounts.pay(message.keys[0], transaction_id)
            return TransactionState.COMMIT

        async with aio.TransactionProducer("payments", was_it_paid) as producer:
            await producer.send_in_transaction(Message("Paid", b"one book", keys="17"), pay)

    A transaction whose body is cancelled is UNKNOWN, as after an exception: a check-back decides.
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
        checks_max: int = CHECKS_MAX,
    ) -> None:
        """Take the arguments of Producer; at most `checks_max` calls of `check` run at once."""
        check_coroutine(check, "check", "message")
        check_integer(checks_max, 1, CHECKS_OPEN_MAX, "checks_max")
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
        self._turns = asyncio.Semaphore(checks_max)
        self._checks: set[asyncio.Task[None]] = set()
        self._open_bytes = 0
        self._core = self._client
        self._core.serves[RequestCode.CHECK_TRANSACTION_STATE] = self._asked

    def _work(self) -> Work:
        return {**super()._work(), "checks": lambda: len(self._checks)}

    def _is_own_task(self) -> bool:
        return asyncio.current_task() in self._checks

    async def _finish_sends(self, deadline_s: float) -> None:
        if self._checks:
            left_s = deadline_s - asyncio.get_running_loop().time()
            await asyncio.wait(self._checks, timeout=max(0.0, left_s))
        await super()._finish_sends(deadline_s)

    async def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        timeout_ms: float | None = None,
        *,
        queue: MessageQueue | None = None,
        check_after_s: int | None = None,
    ) -> TransactionResult:
        """Store a half message, await `execute`, and commit or roll back as it returns.

        Arguments, results and errors are those of `troupemq.TransactionProducer`.
        """
        check_coroutine(execute, "execute", "message", "transaction_id")
        prepared = half_of(message, self.group, check_after_s)
        half = await self.send(prepared, timeout_ms, queue=queue)
        end_of(self.group, half, TransactionState.UNKNOWN)  # raises before `execute` is called
        state, error = TransactionState.ROLLBACK, None
        if half.status is SendStatus.OK:
            try:
                state = decided(await execute(message, half.message_id), "execute")
            except Exception as raised:  # an application error: its progress is unknown
                log_undecided(self.group, half.message_id, raised)
                state, error = TransactionState.UNKNOWN, raised
            except asyncio.CancelledError:
                state = TransactionState.UNKNOWN
                told = self._telling(end_of(self.group, half, state), state)
                drive(told, self._client.carry_out)  # which asks for nothing
                raise
        return await self._client.run(self._ending(message, half, state, error))

    # --- check-backs

    def _asked(self, command: RemotingCommand) -> None:
        """Begin to answer a check-back."""
        header = CheckTransactionStateHeader.decode(command.fields)
        body, address = bytes(command.body or b""), self._client.asked_by
        is_full = self._open_bytes + len(body) > CHECKS_BYTES_MAX
        if is_full or len(self._checks) >= CHECKS_OPEN_MAX or not self.is_running:
            return
        self._open_bytes += len(body)
        task = self._client.remoting.spawn(self._answer(header, body, address))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _answer(self, header: CheckTransactionStateHeader, body: bytes, address: str) -> None:
        try:
            view = checked_half(body, self._client.routes.name_of(address), self.group)
            if view is not None:
                async with self._turns:
                    await self._decide(header, view, address)
        except ClientError as error:
            hint = "the broker will check back again"
            log.warning("check-back failed", address=address, error=str(error), hint=hint)
        finally:
            self._open_bytes -= len(body)

    async def _decide(
        self, header: CheckTransactionStateHeader, view: MessageView, address: str
    ) -> None:
        error: Exception | None = None
        try:
            state = decided(await self._check_state(view), "check")
        except Exception as raised:  # an application error: its progress is unknown
            log_undecided(self.group, view.message_id, raised)
            state, error = TransactionState.UNKNOWN, raised
        self._answer_check(header, view, address, state, error)
