"""Registration of this broker at all name servers, through one NamesrvLink for each.

Owns: the last answer of each name server, and the messages that wait for registrations.
Receives: Listening from the server's start; RegisterTopic, RegisterAll and WhenRegistered from
topics; Registered and Sent from the links; AskForRoute from Assignments; AskFigures from
MetricsPort.
Sends: Listening, RegisterTopic, RegisterAll and BarrierForRegistrations to the links; AskForRoute
to one of them; SetOrderTopics to topics; MasterHaAddress to HaSlave; MasterClientAddress to
SlaveSync; waiting messages to their receivers.

Name servers are independent and may disagree. The first one in namesrvAddr that is up counts; a
slave takes the first that knows its master. 4.9.7 takes the answer that comes first.

Source: BrokerController.registerBrokerAll.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from re import ASCII
from re import compile as compile_pattern

from actors.config import BrokerConfig
from actors.engine.actor import Actor, AskFigures, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.naming.messages import (
    AskForRoute,
    BarrierForRegistrations,
    Listening,
    MasterClientAddress,
    MasterHaAddress,
    Registered,
    RegistrationFigures,
    Sent,
)
from actors.tables.messages import RegisterAll, RegisterTopic, SetOrderTopics, WhenRegistered
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import RegisterBrokerResponseHeader

SENT_WITHIN_MS = 2000
"""Longest wait for name servers; a client waits 3 s for its heartbeat."""

_PORT = "6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}"
_ADDRESS = compile_pattern(rf"[\w.:\[\]%-]+:({_PORT})", ASCII)
"""A valid host and port; receivers connect there."""


@dataclass(slots=True)
class _Waiting:
    """A message that waits for `links_left` links."""

    message: WhenRegistered
    links_left: int


@dataclass(frozen=True, slots=True)
class _Enough:
    """Deadline of a waiting message."""

    serial: int


class Registration(Actor):
    """Actor on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        links: Sequence[ActorAddress],
        leaving: SnapshotRef[bool],
        addresses: Mapping[str, ActorAddress],
        registered: SnapshotRef[int] | None = None,
    ) -> None:
        """Create the actor; `links` go to the name servers.

        `leaving` is set when the broker stops. `registered` counts the name servers, for health.
        """
        super().__init__()
        self._registered = registered or SnapshotRef(0)
        self._leaving = leaving
        self._config = config
        self._links = links
        self._to = addresses
        self._answers: dict[str, RemotingCommand | None] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._serials = count(1)

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        names = self._config.namesrv_addresses
        known = {each: self._answers.get(each) is not None for each in names}
        message.reply(RegistrationFigures(known))

    def on_stop(self) -> None:
        self._let_go()

    def on_failure(self, *_: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        for each in self._waiting.values():
            each.message.pass_on()
        self._waiting.clear()

    def on_drain(self) -> None:
        """Let no stop wait for a name server without an answer."""
        self._leaving.value = True

    @handles(Listening)
    def on_listening(self, message: Listening) -> None:
        self._pass_on(message)

    @handles(RegisterTopic)
    def on_register_topic(self, message: RegisterTopic) -> None:
        self._pass_on(message)

    @handles(RegisterAll)
    def on_register_all(self, message: RegisterAll) -> None:
        self._pass_on(message)

    @handles(WhenRegistered)
    def on_when_registered(self, message: WhenRegistered) -> None:
        """Pass the message on once all links have registered earlier topics.

        A client asks for the route of a new topic only then.
        """
        if not self._links:
            message.pass_on()
            return
        serial = next(self._serials)
        self._waiting[serial] = _Waiting(message, len(self._links))
        self._pass_on(BarrierForRegistrations(serial))
        self.after(SENT_WITHIN_MS, _Enough(serial))

    @handles(Sent)
    def on_sent(self, message: Sent) -> None:
        """Count one link; pass the message on after the last."""
        waiting = self._waiting.get(message.serial)
        if waiting is None:
            return
        waiting.links_left -= 1
        if waiting.links_left == 0:
            self._waiting.pop(message.serial).message.pass_on()

    @handles(_Enough)
    def on_enough(self, message: _Enough) -> None:
        """Pass the message on without the slow name servers."""
        waiting = self._waiting.pop(message.serial, None)
        if waiting is not None:
            waiting.message.pass_on()

    @handles(AskForRoute)
    def on_find_route(self, message: AskForRoute) -> None:
        """Have the first name server that is up asked."""
        up = (
            link
            for link, address in zip(self._links, self._config.namesrv_addresses, strict=True)
            if self._answers.get(address) is not None
        )
        link = next(up, None)
        if link is None:
            message.on_undelivered("no name server is up")
        else:
            link.tell(message)

    def _pass_on(self, message: object) -> None:
        for link in self._links:
            link.tell(message)

    @handles(Registered)
    def on_registered(self, message: Registered) -> None:
        """Note the answer; apply the orders of the first name server that is up."""
        self._answers[message.namesrv] = message.answer
        found = (self._answers.get(address) for address in self._config.namesrv_addresses)
        known = [answer for answer in found if answer is not None]
        self._registered.value = len(known)
        if message.ordered is not None and known[0] is message.answer:
            self._to["topics"].tell(SetOrderTopics(message.ordered))
        if known and self._config.is_slave:
            self._take_master(known)

    def _take_master(self, answers: Sequence[RemotingCommand]) -> None:
        """Tell a slave's actors the master's addresses, or that no name server knows a master.

        A name server that the master cannot reach must not keep its slave from it.
        """
        headers = []
        for answer in answers:
            try:
                headers.append(_checked(answer))
            except RemoteError as error:
                self.system.rarely.warn("master address rejected", reason=error.remark)
        if not headers:
            return
        header = next((each for each in headers if each.master_address), headers[0])
        if header.ha_server_address:
            self._to["ha_slave"].tell(MasterHaAddress(header.ha_server_address))
        self._to["slave_sync"].tell(MasterClientAddress(header.master_address or None))


def _checked(answer: RemotingCommand) -> RegisterBrokerResponseHeader:
    """Return the header of an answer. Raises RemoteError for an invalid address of a master."""
    header = RegisterBrokerResponseHeader.decode(answer.fields)
    for address in (header.ha_server_address, header.master_address):
        if address and not _ADDRESS.fullmatch(address):
            raise RemoteError(ResponseCode.SYSTEM_ERROR, f"invalid address {address}")
    return header
