"""Subscriptions of a group: all messages of a topic, some tags, or an SQL92 expression."""

import re
from typing import NamedTuple

from protocol.bodies import SubscriptionData
from protocol.errors import RemoteError
from protocol.tags import ALL_TAGS, TagFilter
from troupemq.client.connection.client import now_ms
from troupemq.client.errors import MessageIllegal
from troupemq.client.log import client_logger
from troupemq.client.message import MessageView, check_topic

log = client_logger(__name__)

TAG = "TAG"
SQL92 = "SQL92"
_ALL = TagFilter.parse(None)

_COMPARES = re.compile(r"[<>=]|\s(?:IS|IN|LIKE|BETWEEN|NOT)\s")
_JOINS = re.compile(r"\s*[|,;&]+\s*|\s+(?:(?:or|and)\s+)?", re.IGNORECASE)
"""Separators that are mistaken for `||`."""


def compares(tag: str) -> bool:
    """Return whether a tag is probably meant as an SQL92 expression."""
    return _COMPARES.search(tag) is not None


def _hint(tag: str) -> str:
    """Return a hint for a text that is probably not meant as one tag, else an empty text."""
    if compares(tag):
        return f"did you mean sql={tag!r}?"
    if "*" in tag:
        return "tags have no wildcards: '*' alone is all"
    parts = [part for part in _JOINS.split(tag) if part]
    if len(parts) > 1:
        return f"this is one tag: did you mean {' || '.join(parts)!r}?"
    return ""


class TopicSubscription(NamedTuple):
    """A subscription to one topic. `version` is a time in ms; brokers keep the newest."""

    topic: str
    expression: str
    filter: TagFilter
    version: int
    expression_type: str = TAG

    @classmethod
    def of(cls, topic: str, expression: str, sql: str | None, version: int) -> "TopicSubscription":
        """Return a subscription by tags (`a || b`, `*`), or by `sql` if it is given.

        Raises MessageIllegal for invalid or no tags, an empty `sql`, and both at once. Only a
        broker checks the syntax of `sql`.
        """
        if not isinstance(expression, str):
            raise MessageIllegal(f"tags are a string such as 'a || b', and not {expression!r}")
        if sql is not None:
            if not isinstance(sql, str) or not sql.strip():
                raise MessageIllegal(f"an SQL92 expression is a string and not empty: {sql!r}")
            if expression not in ("", ALL_TAGS):
                raise MessageIllegal("a subscription is by tags or by SQL92, not by both")
            return cls(topic, sql, _ALL, version, SQL92)
        try:
            tags = TagFilter.parse(expression)
        except RemoteError as error:
            raise MessageIllegal(f"{error.remark}: {expression!r}") from None
        if tags.codes is not None and not tags.tags:  # brokers would pass all messages over
            raise MessageIllegal(f"{expression!r} names no tag: '*' is all messages")
        return cls(topic, expression or ALL_TAGS, tags, version)

    @classmethod
    def checked(
        cls, group: str, topic: str, expression: str, sql: str | None
    ) -> "TopicSubscription":
        """Return a subscription from now on, and log suspicious tags. Raises MessageIllegal."""
        check_topic(topic)
        subscription = cls.of(topic, expression, sql, now_ms())
        subscription.warn_of_doubts(group)
        return subscription

    def doubts(self) -> list[tuple[str, str]]:
        """Return suspicious tags, each with a hint."""
        return [(tag, hint) for tag in sorted(self.filter.tags) if (hint := _hint(tag))]

    def warn_of_doubts(self, group: str) -> None:
        """Log suspicious tags."""
        for tag, hint in self.doubts():
            log.warning(
                "suspicious tag subscribed", group=group, topic=self.topic, tag=tag, hint=hint
            )

    def wants(self, view: MessageView) -> bool:
        """Return whether the tag matches, as brokers compare only hashes; they apply SQL92."""
        return not self.filter.tags or view.tags in self.filter.tags

    def data(self) -> SubscriptionData:
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            tags_set=sorted(self.filter.tags),
            code_set=sorted(self.filter.codes or ()),
            sub_version=self.version,
            expression_type=self.expression_type,
        )
