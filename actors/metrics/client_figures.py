"""Metrics that only consumers know, requested from each consumer (code 307) for a page.

Owns: the requests in flight.
Receives: MakePage from MetricsPort, CallDone from ClientCalls, its own timer.
Sends: CallClient to ClientCalls, MakePage with the answers to MetricsRenderer, which reads them.

At most CLIENTS_MAX consumers are asked. A consumer without an answer after WAIT_MS is left out, as
are answers that exceed ANSWERS_BYTES_MAX.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.metrics.messages import MakePage
from actors.metrics.page import MetricsPage, labels
from actors.metrics.selection import MetricsSelection
from actors.metrics.sources import FigureSet
from actors.network.messages import CallClient, CallDone
from actors.network.request import SHORT_BODY_BYTES_MAX
from actors.tables.consumer_views import ConsumerView
from protocol.bodies_client import ConsumerRunningInfo, ConsumeStatus
from protocol.codes import V3_1_8_SNAPSHOT, RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.topic_names import GROUP_CHARS_MAX, RETRY_TOPIC_PREFIX

CLIENTS_MAX = 500
WAIT_MS = 3000.0
ANSWERS_BYTES_MAX = 16 << 20
"""Bytes of all answers for a page: 500 consumers of 60 queues each."""
_TOPIC_CHARS_MAX = len(RETRY_TOPIC_PREFIX) + GROUP_CHARS_MAX
_NAMES: Mapping[str, tuple[str, str]] = {
    "rocketmq_client_consume_fail_msg_count": (
        "consume_failed_msgs",
        "Messages failed in the last hour",
    ),
    "rocketmq_client_consume_fail_msg_tps": ("consume_failed_tps", "Failed messages per second"),
    "rocketmq_client_consume_ok_msg_tps": ("consume_ok_tps", "Consumed messages per second"),
    "rocketmq_client_consume_rt": ("consume_rt", "Milliseconds to consume a message"),
    "rocketmq_client_consumer_pull_rt": ("pull_rt", "Milliseconds of a pull"),
    "rocketmq_client_consumer_pull_tps": ("pull_tps", "Pulled messages per second"),
}


@dataclass(frozen=True, slots=True)
class ConsumerAnswer:
    """Answer of one consumer, as it arrived."""

    address: str
    client_id: str
    group: str
    body: bytes

    def statuses(self) -> Mapping[str, ConsumeStatus]:
        """Return the statistics by topic; empty for an invalid body. A long one takes 60 ms."""
        try:
            return ConsumerRunningInfo.decode(self.body).status_table
        except RemoteError:
            return {}


@dataclass(slots=True)
class _Asking:
    """A page that waits for answers; `owed` is the number still missing."""

    page: MakePage
    owed: int
    found: list[ConsumerAnswer] = field(default_factory=list)
    left_bytes: int = ANSWERS_BYTES_MAX


@dataclass(frozen=True, slots=True)
class _Asked:
    """Context of one request to a consumer."""

    serial: int
    group: str
    client_id: str


@dataclass(frozen=True, slots=True)
class _Enough:
    """Answer deadline of the page `serial`."""

    serial: int


@dataclass(frozen=True, slots=True)
class ConsumerAnswers:
    """Answers of the consumers that were asked for a page."""

    found: Sequence[ConsumerAnswer] = ()


class ClientFigures(Actor):
    """Actor on the loop."""

    def __init__(
        self,
        consumers: SnapshotRef[Mapping[str, ConsumerView]],
        client_calls: ActorAddress,
        exposition: ActorAddress,
    ) -> None:
        super().__init__()
        self._consumers = consumers
        self._client_calls, self._exposition = client_calls, exposition
        self._serials = count(1)
        self._asking: dict[int, _Asking] = {}

    @handles(MakePage)
    def on_make_page(self, message: MakePage) -> None:
        """Request the statistics of every consumer of every group."""
        serial = next(self._serials)
        members = (
            (group, member)
            for group, view in self._consumers.value.items()
            for member in list(view.members.values())
            if member.version >= V3_1_8_SNAPSHOT
        )
        asked = list(islice(members, CLIENTS_MAX))
        self._asking[serial] = _Asking(message, len(asked))
        for group, member in asked:
            fields = {
                "consumerGroup": group,
                "clientId": member.client_id,
                "jstackEnable": "false",
            }
            command = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
            context = _Asked(serial, group, member.client_id)
            call = CallClient(member.peer, command, self.address, context, WAIT_MS)
            self._client_calls.tell(call)
        if asked:
            self.after(WAIT_MS, _Enough(serial))
        else:
            self._done(serial)

    @handles(CallDone, reads_only=True)
    def on_done(self, message: CallDone) -> None:
        """Add one answer; the last one completes the page."""
        asked: _Asked = message.context
        asking = self._asking.get(asked.serial)
        if asking is None:
            return
        asking.owed -= 1
        answer = message.answer
        if answer is not None and answer.code == ResponseCode.SUCCESS and answer.body:
            size, remote = len(answer.body), message.peer.remote
            if size <= min(SHORT_BODY_BYTES_MAX, asking.left_bytes):
                asking.left_bytes -= size
                body = bytes(answer.body)  # a view would keep all bytes of its read
                found = ConsumerAnswer(remote, asked.client_id, asked.group, body)
                asking.found.append(found)
        if not asking.owed:
            self._done(asked.serial)

    @handles(_Enough)
    def on_enough(self, message: _Enough) -> None:
        """Complete the page without the missing answers."""
        if message.serial in self._asking:
            self._done(message.serial)

    def _done(self, serial: int) -> None:
        asking = self._asking.pop(serial)
        answers = {**asking.page.reading.found, ConsumerAnswers: ConsumerAnswers(asking.found)}
        self._exposition.tell(replace(asking.page, reading=FigureSet(answers)))

    def on_failure(self, *_: object) -> None:
        """Refuse all waiting pages."""
        for asking in self._asking.values():
            asking.page.on_undelivered(self.remark())


def write_client_figures(
    page: MetricsPage, found: Sequence[ConsumerAnswer], selection: MetricsSelection
) -> None:
    """Write the families; they are empty if no consumer was asked."""
    shown = [*islice(_shown(found, selection), selection.series_max)]
    for name, (attribute, meaning) in _NAMES.items():
        page.gauge(name, meaning, ((text, float(getattr(each, attribute))) for text, each in shown))


def _shown(
    found: Sequence[ConsumerAnswer], selection: MetricsSelection
) -> Iterator[tuple[str, ConsumeStatus]]:
    """Yield the labels and statistics of the shown topics."""
    for each in found:
        if not selection.shows_group(each.group):
            continue
        for topic, status in each.statuses().items():
            if len(topic) <= _TOPIC_CHARS_MAX and selection.shows_topic(topic):
                pairs = {"clientAddr": each.address, "clientId": each.client_id}
                yield labels({**pairs, "group": each.group, "topic": topic}), status
