"""Metrics that only consumers know, requested from each consumer (code 307) for a page.

Owns: the requests in flight.
Receives: MakePage from MetricsPort, CallDone from ClientCalls, its own timer.
Sends: CallClient to ClientCalls, MakePage with the results to MetricsRenderer.

At most CLIENTS_MAX consumers are asked. A consumer without an answer after WAIT_MS is left out.
"""

from collections.abc import Mapping, Sequence
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
from actors.network.request import short_body
from actors.tables.consumer_views import ConsumerView
from protocol.bodies_client import ConsumerRunningInfo, ConsumeStatus
from protocol.codes import V3_1_8_SNAPSHOT, RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand

CLIENTS_MAX = 500
WAIT_MS = 3000.0
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
class ClientFigure:
    """Statistics of one consumer for one topic."""

    address: str
    client_id: str
    group: str
    topic: str
    status: ConsumeStatus


@dataclass(slots=True)
class _Asking:
    """A page that waits for answers; `owed` is the number still missing."""

    page: MakePage
    owed: int
    found: list[ClientFigure] = field(default_factory=list)


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
    """Statistics of the consumers that were asked for a page."""

    figures: Sequence[ClientFigure] = ()


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
            try:
                table = ConsumerRunningInfo.decode(short_body(answer)).status_table
            except RemoteError:
                table = {}
            remote, client_id = message.peer.remote, asked.client_id
            asking.found += [
                ClientFigure(remote, client_id, asked.group, topic, status)
                for topic, status in table.items()
            ]
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
    page: MetricsPage, found: Sequence[ClientFigure], selection: MetricsSelection
) -> None:
    """Write the families; they are empty if no consumer was asked."""
    shown = [
        each
        for each in found
        if selection.shows_topic(each.topic) and selection.shows_group(each.group)
    ][: selection.series_max]
    texts = [
        labels(
            {
                "clientAddr": each.address,
                "clientId": each.client_id,
                "group": each.group,
                "topic": each.topic,
            }
        )
        for each in shown
    ]
    for name, (attribute, meaning) in _NAMES.items():
        values = [float(getattr(each.status, attribute)) for each in shown]
        page.gauge(name, meaning, zip(texts, values, strict=True))
