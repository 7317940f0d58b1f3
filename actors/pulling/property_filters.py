"""Property filters (SQL92) of pulls, compiled: plain functions for PullRules, and a budget.

Compiling takes 2 to 4 µs per character, and blocks the event loop. Compiled expressions are free
for every client; they come with every heartbeat, and with every pull of some clients. For new ones
each connection has a number of characters per second. An address has the budget of four
connections, so that more connections gain little. Clients on this machine have no address limit.

Source: ExpressionMessageFilter.java, ExpressionForRetryMessageFilter.java.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from actors.network.limits import is_loopback
from actors.network.messages import Peer
from protocol.codes import ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.host import host_of
from protocol.properties import RETRY_TOPIC
from protocol.sql92 import EXPRESSION_CHARS_MAX, Filter, SqlError, compile_filter, is_compiled
from protocol.topic_names import RETRY_TOPIC_PREFIX
from storage.queues.message_filter import MessageFilter
from storage.tables.consumer_filters import SQL92, ConsumerFilter, ConsumerFilters

TAG_EXPRESSIONS = (None, "", "TAG")
"""Expression types of subscriptions that filter only by tags."""

Matches: TypeAlias = Callable[[Mapping[str, str]], bool | None]

BURST_CHARS = 64 << 10
"""Characters available at once: a consumer can name a hundred expressions at its start."""

CHARS_PER_MS = 8
ADDRESS_TIMES = 4
PEERS_MAX = 10_000


def not_supported(kind: str | None) -> RemoteError:
    """Return the refusal of a filter type that this broker does not support."""
    return RemoteError(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {kind}",
    )


def compiled(kind: str | None, expression: str) -> Filter:
    """Return the compiled expression. Raises RemoteError(SUBSCRIPTION_PARSE_FAILED)."""
    if kind != SQL92:
        raise RemoteError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, not_supported(kind).remark)
    try:
        return compile_filter(expression)
    except SqlError as error:
        if len(expression) <= EXPRESSION_CHARS_MAX:
            raise
        raise LimitReached(error.code, error.remark, "an expression is too long") from None


def check_registered(found: ConsumerFilter | None, sub_version: int) -> ConsumerFilter:
    """Return the filter. Raises RemoteError if it is unknown or older than `sub_version`."""
    if found is None:
        raise RemoteError(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
        )
    if found.client_version < sub_version:
        raise RemoteError(
            ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
        )
    return found


def registered_filter(found: ConsumerFilter, filters: ConsumerFilters) -> MessageFilter:
    """Return a filter by the bits of the queue's extension units, if any, and by properties."""
    bits, chars = found.bits(filters.bloom), len(found.expression)
    return MessageFilter(bits=bits, matches=found.compiled(), chars=chars)


def retry_matches(topic: str, filters: ConsumerFilters) -> Matches | None:
    """Return a filter for a group's retry topic: its expression for each message's original topic.

    Return None, for every message, if it is another topic or the group has no filters.
    """
    group = topic.removeprefix(RETRY_TOPIC_PREFIX)
    if group == topic or not filters.has_group(group):
        return None

    def matches(properties: Mapping[str, str]) -> bool | None:
        found = filters.get(properties.get(RETRY_TOPIC, ""), group)
        closure = None if found is None else found.compiled()
        return True if closure is None else closure(properties)

    return matches


def is_true(matches: Matches, properties: Mapping[str, str]) -> bool:
    """Return whether the message matches; an evaluation error counts as no, as in 4.9.7."""
    try:
        return bool(matches(properties))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False


def is_to_be_compiled(kind: str | None, expression: str) -> bool:
    """Return whether the expression must be compiled; one that is too long is refused instead."""
    return kind == SQL92 and len(expression) <= EXPRESSION_CHARS_MAX and not is_compiled(expression)


@dataclass(slots=True)
class _Purse:
    left_chars: float
    since_ms: float


class CompileBudget:
    """Budgets of all connections and addresses. One owner."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        """`now_ms` is a monotonic clock."""
        self._now_ms = now_ms
        self._purses: dict[int | str, _Purse] = {}

    def take(self, peer: Peer, kind: str | None, expression: str) -> bool:
        """Return whether the expression must be compiled, and charge the budget.

        Raises RemoteError(SYSTEM_BUSY) if the budget is used up; it refills with time.
        """
        if not is_to_be_compiled(kind, expression):
            return False
        address = host_of(peer.remote)
        if not is_loopback(address):
            self._take(address, len(expression), ADDRESS_TIMES)
        self._take(peer.peer_id, len(expression), 1)
        return True

    def _take(self, whose: int | str, chars: int, times: int) -> None:
        purse, now_ms = self._purses.get(whose), self._now_ms()
        if purse is None:
            if len(self._purses) >= PEERS_MAX:
                del self._purses[next(iter(self._purses))]
            purse = self._purses[whose] = _Purse(BURST_CHARS * times, now_ms)
        left_chars = purse.left_chars + (now_ms - purse.since_ms) * CHARS_PER_MS * times
        purse.left_chars, purse.since_ms = min(left_chars, BURST_CHARS * times), now_ms
        if chars > purse.left_chars:
            whose = "connection" if isinstance(whose, int) else "address"
            remark = f"too many new filter expressions of this {whose}: try again in a second"
            raise LimitReached(ResponseCode.SYSTEM_BUSY, remark, "too many new expressions")
        purse.left_chars -= chars
