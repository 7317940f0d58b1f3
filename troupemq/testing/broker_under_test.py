"""Faults that a test injects into a broker, and checks of its messages."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from actors.engine.actor_address import Reply
from protocol.codes import RequestCode, ResponseCode
from protocol.compression import CompressionError
from protocol.delay_levels import delay_levels_ms
from protocol.topic_names import DLQ_TOPIC_PREFIX
from storage.spelling import did_you_mean
from troupemq.client.arguments import MS_MAX, check_instance, check_integer, check_range
from troupemq.client.connection.route import route_of
from troupemq.client.errors import ArgumentIllegal, ClientError, RouteNotFound
from troupemq.client.message import MessageQueue, MessageView
from troupemq.testing.messages import AddFault, Effect, InjectedFault, SetDiskFull

if TYPE_CHECKING:
    from troupemq.client.admin import Admin

QUEUES = 4
"""Queues of a topic that nothing else has created."""

REQUESTS = {
    "send": (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    ),
    "pull": (RequestCode.PULL_MESSAGE,),
    "receive": (RequestCode.POP_MESSAGE,),
    "ack": (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE),
    "commit": (RequestCode.UPDATE_CONSUMER_OFFSET,),
    "heartbeat": (RequestCode.HEART_BEAT,),
    "retry": (RequestCode.CONSUMER_SEND_MSG_BACK,),
    "transaction": (RequestCode.END_TRANSACTION,),
}
"""Short names of requests; the names of RequestCode work, too."""

Duration = str | float | timedelta
DURATION_S_MAX = 100 * 366 * 86_400.0
"""Limit of a duration, a century: a clock behind it might overflow the fields of messages."""

_numbers = count(1)


class BrokerUnderTest(ABC):
    """Base of the brokers of this package; each of them says how a test waits."""

    @property
    @abstractmethod
    def namesrv(self) -> str:
        """Address of the name server, for clients."""

    @property
    @abstractmethod
    def admin(self) -> "Admin":
        """Administration of this broker; closed with it."""

    @abstractmethod
    def _ask(self, make: Callable[[Reply[Any]], object]) -> Any:
        """Return the answer of the Faults actor."""

    @abstractmethod
    def _wait_until(
        self,
        is_done: Callable[[], bool],
        what: str,
        within_s: float,
        instead: Callable[[], str] = str,
    ) -> None:
        """Wait; raise the AssertionError of `not_within` after `within_s`."""

    def new_topic(self, queues: int = QUEUES) -> str:
        """Create a topic with a name of its own in this process, and return the name."""
        topic = f"topic-{next(_numbers)}"
        self.admin.create_topic(topic, queues)
        return topic

    def new_group(self) -> str:
        """Return a group name of its own in this process."""
        return f"group-{next(_numbers)}"

    # --- faults

    def fail(
        self,
        request: str,
        code: str = "SYSTEM_ERROR",
        *,
        times: int | None = None,
        remark: str = "refused by a test",
    ) -> InjectedFault:
        """Refuse requests with a response code, such as SYSTEM_BUSY.

        `request` is a name of REQUESTS, a name of RequestCode, or "all". `times` is the number of
        requests to refuse, None for all until its `is_ended` is set.
        """
        if code not in ResponseCode.__members__:
            meant = did_you_mean(str(code), ResponseCode.__members__, "use a name of ResponseCode")
            raise ArgumentIllegal(f"unknown response code {code!r}: {meant}")
        return self._add(
            InjectedFault(
                Effect.REFUSE, _codes(request), times, code=ResponseCode[code], remark=remark
            )
        )

    def lose(
        self, request: str = "all", *, times: int | None = None, answer: bool = False
    ) -> InjectedFault:
        """Let requests never arrive; with `answer` they do, and their answers are lost."""
        effect = Effect.LOSE_ANSWER if answer else Effect.LOSE
        return self._add(InjectedFault(effect, _codes(request), times))

    def slow(self, ms: float, request: str = "all", *, times: int | None = None) -> InjectedFault:
        """Let requests arrive so many milliseconds later."""
        check_range(ms, 0, MS_MAX, "ms")
        return self._add(InjectedFault(Effect.DELAY, _codes(request), times, delay_ms=ms))

    @abstractmethod
    def cut(self) -> int:
        """Close all connections of clients; return their number."""

    def fill_disk(self) -> None:
        """Let the disk look full: sends are refused, and full log files may be deleted."""
        self._set_disk_full(True)

    def free_disk(self) -> None:
        """Let the disk have room again."""
        self._set_disk_full(False)

    def _set_disk_full(self, is_full: bool) -> None:
        self._ask(lambda reply: SetDiskFull(is_full, reply))

    def _add(self, fault: InjectedFault) -> InjectedFault:
        if fault.times is not None:
            check_integer(fault.times, 1, MS_MAX, "times")
        self._ask(lambda reply: AddFault(fault, reply))
        return fault

    # --- checks

    def messages(self, topic: str) -> list[MessageView]:
        """Return all messages of a topic in the order of their storage; empty without the topic."""
        readers = [self.admin.reader(queue) for queue in self.queues(topic)]
        found = [view for reader in readers for view in reader.messages(*reader.ends())]
        return sorted(found, key=lambda view: view.physical_offset)

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of a topic; empty without the topic."""
        try:
            return sorted(route_of(topic, self.admin.route(topic)).subscribe_queues)
        except RouteNotFound:
            return ()

    def dead_letters(self, group: str) -> list[MessageView]:
        """Return the messages that a group has given up."""
        return self.messages(DLQ_TOPIC_PREFIX + group)

    def lag(self, group: str) -> int:
        """Return how many messages a group has not consumed, retries included.

        Raises ClientError for a group without members and offsets.
        """
        lag, seen = 0, set()
        try:
            for each in self.admin.group_progress(group):
                seen.add((each.topic, each.queue_id))
                lag += each.lag
        except ClientError:  # a new group, whose members must be known
            topics: Collection[str] = self.admin.members_of(group).subscription_table
        else:
            topics = self._subscribed(group)
        for topic in topics:
            for queue in self.queues(topic):
                if (topic, queue.queue_id) not in seen:
                    first, end = self.admin.offsets(queue)
                    lag += end - first
        return lag

    def _subscribed(self, group: str) -> Collection[str]:
        try:
            return self.admin.members_of(group).subscription_table
        except ClientError:  # no member is online
            return ()

    def expect(
        self,
        topic: str,
        *,
        body: bytes | str | None = None,
        tags: str | None = None,
        keys: str | None = None,
        times: int = 1,
        within_s: float = 5.0,
    ) -> list[MessageView]:
        """Wait until a topic has `times` messages with these values, and return them.

        Raises AssertionError that lists the messages of the topic.
        """
        check_integer(times, 1, MS_MAX, "times")  # 0 would hold whatever the topic has
        wanted = body.encode() if isinstance(body, str) else body

        def found() -> list[MessageView]:
            return [
                each
                for each in self.messages(topic)
                if wanted in (None, body_of(each))
                and tags in (None, each.tags)
                and (keys is None or keys in each.keys)
            ]

        given = {"body": body, "tags": tags, "keys": keys}
        text = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        what = f"{times} message{'s' if times > 1 else ''} with {text or 'any values'} in {topic}"
        self._wait_until(
            lambda: len(found()) >= times, what, within_s, lambda: listed(self.messages(topic))
        )
        return found()

    def expect_in_order(
        self, topic: str, bodies: Sequence[bytes | str], *, within_s: float = 5.0
    ) -> list[MessageView]:
        """Wait until a topic has messages with these bodies in this order, and return them.

        Other messages may be in between. The order is that of storage, which is the order of
        consumption for messages of one queue. Raises AssertionError that lists the messages.
        """
        wanted = [each.encode() if isinstance(each, str) else each for each in bodies]

        def found() -> list[MessageView]:
            stored = iter(self.messages(topic))
            steps = (next((at for at in stored if body_of(at) == each), None) for each in wanted)
            return [view for view in steps if view is not None]

        what = f"{wanted!r} in this order in {topic}"
        self._wait_until(
            lambda: len(found()) == len(wanted),
            what,
            within_s,
            lambda: listed(self.messages(topic)),
        )
        return found()


def not_within(what: str, within_s: float, instead: str) -> AssertionError:
    """Return the error of a test that has waited in vain; `instead` is what it found."""
    found = f"; there is: {instead}" if instead else ""
    return AssertionError(f"waited {within_s:g} s for {what}{found}")


def check_tables(topics: Mapping[str, int] | None, settings: Mapping[str, str] | None) -> None:
    """Raise ArgumentIllegal unless both are tables, and the settings are texts."""
    if topics is not None:
        check_instance(topics, Mapping, 'topics are a dict of queue counts, as {"Orders": 4}')
    if settings is not None:
        check_instance(settings, Mapping, 'settings are a dict, as {"brokerRole": "ASYNC_MASTER"}')
        for name, value in settings.items():
            check_instance(value, str, f"the setting {name} is a string, as in broker.conf")


def milliseconds(duration: Duration, most_s: float = DURATION_S_MAX) -> float:
    """Return seconds, a timedelta or a text such as "2h" or "1m 30s" in ms. Raises ValueError."""
    check_instance(
        duration, str | int | float | timedelta, "a duration is seconds, a timedelta or a text"
    )
    if isinstance(duration, str):
        seconds: float = sum(delay_levels_ms(duration)) // 1000
    else:
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(seconds, bool) or not 0 <= seconds <= most_s:  # neither backwards nor nan
        raise ArgumentIllegal(f"a duration is {duration!r}, and not within 0 to {most_s:g} s")
    return seconds * 1000


def _codes(request: str) -> frozenset[int] | None:
    if request == "all":
        return None
    if request in REQUESTS:
        return frozenset(REQUESTS[request])
    try:
        return frozenset((RequestCode[request],))
    except KeyError:
        names = ", ".join(("all", *REQUESTS))
        raise ValueError(f"no request {request!r}: use {names}, or a name of RequestCode") from None


def body_of(view: MessageView) -> bytes:
    """Return the body; as it is stored if it cannot be decompressed."""
    try:
        return view.body
    except CompressionError:
        return view.stored_body


def listed(messages: Sequence[MessageView]) -> str:
    """Return the first 20 messages in words."""
    if not messages:
        return "no message"
    shown = [f"body={body_of(each)!r}, tags={each.tags!r}, keys={each.keys!r}" for each in messages]
    more = f"\n  and {len(shown) - 20} more" if len(shown) > 20 else ""
    return "\n  " + "\n  ".join(shown[:20]) + more
