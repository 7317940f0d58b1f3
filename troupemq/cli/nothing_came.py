"""Reasons why `consume` prints nothing: missing topic, unused tag, no new messages."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from protocol.bodies_admin import ConsumeStatsBody
from protocol.codes import RequestCode
from protocol.headers.admin import GetConsumeStatsHeader
from protocol.tags import ALL_TAGS, TagFilter
from troupemq.client.admin import Admin
from troupemq.client.admin.base import SILENT_S
from troupemq.client.admin.reading import PULLED_MAX
from troupemq.client.consuming.subscription import compares
from troupemq.client.errors import ClientError, RouteNotFound
from troupemq.client.message import MessageQueue, MessageView
from troupemq.text import say

SAMPLE_MAX = 256
"""Number of newest messages that are searched for the tag."""

TAGS_SHOWN = 10


@dataclass
class SilenceAdvice:
    """Explanations on stderr why a subscription of `consume` gets no messages."""

    namesrv: str | None
    topic_name: str
    group: str
    expression: str
    is_sql: bool = False
    _is_missing: bool = False

    def tags(self) -> None:
        """Warn of tags that look joined by something else than `||`."""
        if (hint := tags_hint(self.expression)) is not None:
            say(hint)

    def topic(self) -> None:
        self._is_missing = self._say(lambda admin: missing_topic(admin, self.topic_name))

    def nothing_came(self) -> None:
        """Explain why no message came, unless the topic was missing at the start."""
        if not self._is_missing:
            self._say(
                lambda admin: why_nothing_came(
                    admin, self.topic_name, self.group, self.expression, is_sql=self.is_sql
                )
            )

    def _say(self, look: Callable[[Admin], str | None]) -> bool:
        try:
            with Admin(self.namesrv, silent_s=SILENT_S) as admin:
                found = look(admin)
        except ClientError:
            return False  # the consumer retries and logs this itself
        if found is not None:
            say(found)
        return found is not None


def tags_hint(tags: str) -> str | None:
    """Return a question for tags that look like SQL92, or joined by something else than `||`."""
    if compares(tags):
        return f"the tag is {tags!r}: did you mean --sql {tags!r}?"
    parts = [part.strip() for part in tags.split("||")]
    found = [
        word
        for part in parts
        for word in part.replace("|", " ").replace(",", " ").replace(";", " ").split()
    ]
    if found == parts or not found or ALL_TAGS in found:
        return None
    return f"the tag is {tags!r}: did you mean '{' || '.join(found)}'?"


def missing_topic(admin: Admin, topic: str) -> str | None:
    """Return the sentence for a topic that no name server knows. Raises ClientError."""
    try:
        admin.queues(topic)
    except RouteNotFound:
        return (
            f"topic {topic} not found, waiting for it: create it with"
            f" troupemq admin updateTopic -c CLUSTER -t {topic}"
        )
    return None


def why_nothing_came(admin: Admin, topic: str, group: str, tags: str, *, is_sql: bool) -> str:
    """Return one sentence on why a group gets no message. Raises ClientError."""
    missing = missing_topic(admin, topic)
    if missing is not None:
        return missing
    queues = admin.queues(topic)
    ends = {queue: admin.offsets(queue) for queue in queues}
    count = sum(last - first for first, last in ends.values())
    if count <= 0:
        return f"no new messages: topic {topic} is empty"
    wanted = TagFilter.parse(tags).tags
    if wanted and not is_sql:
        newest = list(islice(_newest(admin, ends), SAMPLE_MAX))
        sent = sorted({view.tags or "none" for view in newest})
        if newest and not wanted.intersection(sent):
            shown = ", ".join(sent[:TAGS_SHOWN]) + (", …" if sent[TAGS_SHOWN:] else "")
            return (
                f"none of the newest {len(newest)} messages of {topic} has the tag"
                f" {' or '.join(sorted(wanted))}: their tags are {shown}"
            )
    lag = _lag(admin, topic, group)
    if lag:
        return (
            f"group {group} has a consumer lag of {lag} messages in {topic}: another member may"
            f" have the queues (see troupemq admin consumerStatus -g {group})"
        )
    unmatched = " or filtered out" if is_sql or wanted else ""
    return (
        f"no new messages: group {group} has consumed{unmatched} all {count} messages of {topic};"
        " use another group (-g) to read them from the first one"
    )


def _newest(admin: Admin, ends: dict[MessageQueue, tuple[int, int]]) -> Iterator[MessageView]:
    for queue, (first, last) in ends.items():
        begin = max(first, last - PULLED_MAX)
        yield from admin.reader(queue).messages(begin, last)


def _lag(admin: Admin, topic: str, group: str) -> int:
    """Return the consumer lag in messages; 0 if no broker answers."""
    lag = 0
    code, header = RequestCode.GET_CONSUME_STATS, GetConsumeStatsHeader(group, topic)
    for place in admin.topic_brokers(topic):
        try:
            stats = admin.read(ConsumeStatsBody, place.address, code, header)
        except ClientError:
            continue
        lag += sum(
            max(0, each.broker_offset - each.consumer_offset)
            for each in stats.offset_table.values()
        )
    return lag
