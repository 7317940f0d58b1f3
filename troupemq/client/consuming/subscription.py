"""Subscriptions of a group: all of a topic, some tags, or what an SQL92 expression matches."""

import re
from dataclasses import dataclass

from protocol.bodies import SubscriptionData
from protocol.errors import RemoteError
from protocol.tags import ALL_TAGS, TagFilter
from troupemq.client.errors import MessageIllegal
from troupemq.client.message import MessageView

TAG = "TAG"
SQL92 = "SQL92"
_ALL = TagFilter.parse(None)

_COMPARES = re.compile(r"[<>=]|\s(?:IS|IN|LIKE|BETWEEN|NOT)\s")
_JOINS = re.compile(r"\s*[|,;&]+\s*|\s+(?:(?:or|and)\s+)?", re.IGNORECASE)
"""What people write between two tags, but for `||`."""


def _hint(tag: str) -> str:
    """What a tag was probably meant to be; empty for one that looks like a tag."""
    if _COMPARES.search(tag):
        return f"did you mean sql={tag!r}?"
    parts = [part for part in _JOINS.split(tag) if part]
    if len(parts) > 1:
        return f"this is one tag: did you mean {' || '.join(parts)!r}?"
    if "*" in tag:
        return "tags have no wildcards: '*' alone is all"
    return ""


@dataclass(frozen=True)
class TopicSubscription:
    """One topic's. `version` is a time in ms: of two the broker keeps the newer."""

    topic: str
    expression: str
    filter: TagFilter
    version: int
    expression_type: str = TAG

    @classmethod
    def of(cls, topic: str, expression: str, sql: str | None, version: int) -> "TopicSubscription":
        """By tags (`a || b`, `*`), or by `sql` where that is given.

        Raises MessageIllegal for tags that are none, for an empty `sql`, and for both at once. Only
        a broker can tell whether it understands an `sql`.
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
            return cls(topic, expression or ALL_TAGS, TagFilter.parse(expression), version)
        except RemoteError as error:
            raise MessageIllegal(f"{error.remark}: {expression!r}") from None

    def doubts(self) -> list[tuple[str, str]]:
        """Return the tags that were probably meant otherwise, each with a hint."""
        return [(tag, hint) for tag in sorted(self.filter.tags) if (hint := _hint(tag))]

    def wants(self, view: MessageView) -> bool:
        """Looks at the tag itself: the broker compares hashes only. SQL92 is the broker's work."""
        return not self.filter.tags or view.tags in self.filter.tags

    def data(self) -> SubscriptionData:
        """As heartbeats tell it."""
        return SubscriptionData(
            topic=self.topic,
            sub_string=self.expression,
            tags_set=sorted(self.filter.tags),
            code_set=sorted(self.filter.codes or ()),
            sub_version=self.version,
            expression_type=self.expression_type,
        )
