"""Messages that are held with a connection that has ended: the next connection holds them.

A broker gives back what a connection held a second after its end. Within that second, and for two
seconds after a start of the broker, a request for each message moves its hold to the connection of
the request. The handle stays, so that the request may be repeated, and a settlement need not wait.

A message that the broker has given back all the same may come to the consumer that still works on
it. Its delivery goes on with the new handle then, and the application gets no second one.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from troupemq.client.errors import ClientError
from troupemq.client.log import client_logger
from troupemq.client.receiving.delivery import DeliveryState, HeldMessage
from troupemq.client.receiving.flows import (
    SETTLE_TRY_MS,
    Ask,
    Flow,
    Flows,
    Pause,
    Several,
    checked,
    is_passing,
)
from troupemq.client.receiving.receipt import Receipt, change_command

log = client_logger(__name__)

RECLAIMED_AT_ONCE = 32
"""Messages that are asked for together."""
RECLAIM_AGAIN_MS, RECLAIM_AGAIN_MS_MAX = 50, 500
"""Pause while the broker does not answer; it doubles each time. A started broker waits for 2 s."""
RESTED_S = 1.0
"""Time between two ends of connections, below which the second one begins with such a pause."""


class Reclaimer:
    """Receipts of one consumer whose connections have ended."""

    def __init__(self, flows: Flows, held: Mapping[Receipt, HeldMessage[Any]]) -> None:
        """Take the flows of a consumer, and what it holds, which the consumer changes."""
        self._flows, self._held = flows, held
        self._lost: dict[str, Receipt] = {}
        """Messages that brokers may have given back since, by their origin."""

        self._waiting: dict[str, dict[Receipt, None]] = {}
        """Messages to ask for, by broker."""

        self._running: set[str] = set()
        """Brokers with a flow that asks."""

        self._begun_s: dict[str, float] = {}
        """Time of the last such flow of each broker."""

        flows.goes_on = self.goes_on

    def lose(self, broker_name: str) -> Flow[None] | None:
        """Note the end of a connection to a broker; return a flow that is to be run, if any."""
        lost = [
            each
            for each in tuple(self._held)
            if each.expires_s is None and each.broker_name == broker_name
        ]
        if not lost:
            return None
        self._lost.update({each.origin: each for each in lost})
        waiting = self._waiting.setdefault(broker_name, {})
        waiting.update(dict.fromkeys(lost))
        if broker_name in self._running:
            return None
        self._running.add(broker_name)
        return self._reclaim(broker_name, waiting)

    def forget(self, receipt: Receipt) -> None:
        """Note that a message is settled."""
        if self._lost and self._lost.get(receipt.origin) is receipt:
            self._lost.pop(receipt.origin, None)

    def _reclaim(self, broker_name: str, waiting: dict[Receipt, None]) -> Flow[None]:
        """Ask for messages until their broker has answered, or they are settled."""
        pause_ms = RECLAIM_AGAIN_MS
        self._running.add(broker_name)
        now_s, last_s = monotonic(), self._begun_s.get(broker_name)
        self._begun_s[broker_name] = now_s
        try:
            if last_s is not None and now_s < last_s + RESTED_S:
                yield Pause(RECLAIM_AGAIN_MS_MAX)
            while waiting:
                asked, busy = self._next(waiting)
                again = busy
                if asked:
                    again = busy + (yield from self._ask_for(asked))
                waiting.update(dict.fromkeys(again))
                if len(again) < len(asked) + len(busy):
                    pause_ms = RECLAIM_AGAIN_MS
                elif again:
                    yield Pause(pause_ms)
                    pause_ms = min(2 * pause_ms, RECLAIM_AGAIN_MS_MAX)
        finally:
            self._running.discard(broker_name)
        if waiting:  # of a connection that has ended at this moment
            yield from self._reclaim(broker_name, waiting)

    def _next(self, waiting: dict[Receipt, None]) -> tuple[list[Receipt], list[Receipt]]:
        """Remove and return some messages: those to ask for, and those that are being settled."""
        asked: list[Receipt] = []
        busy: list[Receipt] = []
        for each in tuple(waiting)[:RECLAIMED_AT_ONCE]:
            waiting.pop(each, None)  # before it is asked for: the next connection may end meanwhile
            if (held := self._held.get(each)) is not None and not held.is_settled:
                (asked if held.state is DeliveryState.OPEN else busy).append(each)
        return asked, busy

    def _ask_for(self, receipts: Sequence[Receipt]) -> Flow[list[Receipt]]:
        """Return the messages to ask for once more."""
        terms = self._flows.terms
        asks = []
        for each in receipts:
            command = change_command(
                terms.group, each, terms.invisible_ms, None, with_connection=True
            )
            asks.append(Ask(each.topic, each.broker_name, command, SETTLE_TRY_MS))
        answers = yield Several(asks, SETTLE_TRY_MS, wait_all=True)
        again, count = [], 0
        for receipt, answer in zip(receipts, answers, strict=True):
            try:
                if self._is_held(receipt, answer):
                    count += 1
                else:
                    again.append(receipt)
            except ClientError:  # given back already, or refused
                continue
        if count:
            log.info("messages reclaimed", group=terms.group, count=count)
        return again

    def _is_held(self, receipt: Receipt, answer: RemotingCommand | ClientError | None) -> bool:
        """Note an answer; return False if the next one may differ. Raises ClientError."""
        try:
            if isinstance(answer, ClientError):
                raise answer
            if answer is None:
                return False
            checked(answer, receipt.broker_name)
        except ClientError as error:
            if is_passing(error):
                return False
            raise
        with suppress(RemoteError):  # of an answer that cannot be understood
            receipt.changed(answer.fields, monotonic())
        return True

    def goes_on(self, again: Receipt) -> bool:
        """Return whether a received message belongs to an open delivery, which takes its handle."""
        receipt = self._lost.get(again.origin) if self._lost else None
        held = None if receipt is None else self._held.get(receipt)
        if receipt is None or held is None:
            return False
        receipt.handle, receipt.expires_s = again.handle, again.expires_s
        return held.state is DeliveryState.OPEN  # else its settlement may have the former handle
