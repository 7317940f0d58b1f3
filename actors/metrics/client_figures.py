"""Figures that only consumers have: each is asked how it runs (code 307), when a page wants them.

Owns: the questions that are on their way.
Told by: MetricsPort (`MakePage`), ClientCalls (`CallDone`), its own timer.
Tells: ClientCalls (`CallClient`), MetricsRenderer (`MakePage`, with what was found).

At most CLIENTS_MAX are asked; who does not answer in WAIT_MS is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.snapshot_ref import SnapshotRef
from actors.metrics.metrics_port import MakePage
from actors.metrics.page import MetricsPage, labels
from actors.metrics.selection import MetricsSelection
from actors.network.messages import CallClient, CallDone
from actors.network.request import short_body
from actors.tables.consumer_views import ConsumerView
from protocol.bodies_client import ConsumerRunningInfo, ConsumeStatus
from protocol.client_versions import V3_1_8_SNAPSHOT
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError

CLIENTS_MAX = 500
WAIT_MS = 3000.0
_NAMES: Mapping[str, tuple[str, str]] = {
    "rocketmq_client_consume_fail_msg_count": ("consume_failed_msgs", "Failed in the last hour"),
    "rocketmq_client_consume_fail_msg_tps": ("consume_failed_tps", "Failed a second"),
    "rocketmq_client_consume_ok_msg_tps": ("consume_ok_tps", "Consumed a second"),
    "rocketmq_client_consume_rt": ("consume_rt", "Time to consume one, ms"),
    "rocketmq_client_consumer_pull_rt": ("pull_rt", "Time of a pull, ms"),
    "rocketmq_client_consumer_pull_tps": ("pull_tps", "Messages pulled a second"),
}


@dataclass(frozen=True, slots=True)
class ClientFigure:
    """What one consumer says of one topic."""

    address: str
    client_id: str
    group: str
    topic: str
    status: ConsumeStatus


@dataclass(slots=True)
class _Asking:
    """A page that waits for consumers."""

    page: MakePage
    owed: int
    found: list[ClientFigure] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One of them."""

    serial: int
    group: str
    client_id: str


@dataclass(frozen=True, slots=True)
class _Enough:
    """They have had their time."""

    serial: int


@dataclass(frozen=True, slots=True)
class WithClients:
    """What the loop has looked at, and what consumers have said."""

    reading: object
    figures: Sequence[ClientFigure]


class ClientFigures(Actor):
    """Lives on the loop."""

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
        """Asks every consumer of every group."""
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
        """One has answered, or will not."""
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
        """The page is made without those that are missing."""
        if message.serial in self._asking:
            self._done(message.serial)

    def _done(self, serial: int) -> None:
        asking = self._asking.pop(serial)
        reading = WithClients(asking.page.reading, asking.found)
        self._exposition.tell(replace(asking.page, reading=reading))

    def on_failure(self, *_: object) -> None:
        """Who scrapes is told."""
        for asking in self._asking.values():
            asking.page.refuse(self.remark())


def write_client_figures(
    page: MetricsPage, found: Sequence[ClientFigure], selection: MetricsSelection
) -> None:
    """The families, empty where nobody was asked."""
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
