"""Property filters (SQL92) of pulls, compiled: plain functions for PullRules.

Source: ExpressionMessageFilter.java, ExpressionForRetryMessageFilter.java.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from protocol.codes import ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.properties import RETRY_TOPIC
from protocol.sql92 import EXPRESSION_CHARS_MAX, Filter, SqlError, compile_filter
from protocol.topic_names import RETRY_TOPIC_PREFIX
from storage.queues.message_filter import MessageFilter
from storage.tables.consumer_filters import SQL92, ConsumerFilter, ConsumerFilters

TAG_EXPRESSIONS = (None, "", "TAG")
"""Expression types of subscriptions that filter only by tags."""

Matches: TypeAlias = Callable[[Mapping[str, str]], bool | None]


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
