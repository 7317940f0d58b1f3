"""Actor between a broker's connections and its other actors, which applies a test's faults.

Without faults it passes every message on. It also moves the clock: clients send heartbeats in real
time, so it repeats their last ones, or the broker would take them for gone after a jump.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from actors.dispatching.messages import WritesForbidden
from actors.engine.actor import Actor, handles
from actors.engine.actor_address import ActorAddress
from actors.network.connection import Connection
from actors.network.messages import (
    Buffer,
    Close,
    Peer,
    PeerClosed,
    Request,
    Sends,
    StreamPeer,
    failure,
)
from actors.network.request import Service
from actors.retention.clean_files import DISK_USE
from protocol.codes import RequestCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from troupemq.testing.messages import (
    AddFault,
    CutConnections,
    Effect,
    Forward,
    InjectedFault,
    MoveClock,
    SetDiskFull,
)

NAME = "faults"


def interposed(service: Service, faults: ActorAddress) -> Service:
    """Return the service of a port whose requests go to the Faults actor first."""
    if service.sends_to is None:  # a slave's
        return service
    return replace(
        service,
        routes=dict.fromkeys(service.routes, faults),
        sends_to=faults,
        tell_closed=(*service.tell_closed, faults),
    )


class _DeafPeer:
    """Client that gets no answers; all else is the client's."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.peer_id, self.remote, self.host = peer.peer_id, peer.remote, peer.host

    @property
    def is_fast(self) -> bool:
        return self._peer.is_fast

    @property
    def is_open(self) -> bool:
        return self._peer.is_open

    def send(self, command: RemotingCommand) -> None:
        """Lose an answer."""

    def note_failure(self) -> None:
        self._peer.note_failure()


class _DeafStreamPeer(_DeafPeer):
    _peer: StreamPeer

    def write(self, _frames: Sequence[Buffer], released_bytes: int = 0) -> None:
        """Lose the answers, and release the bytes of their requests."""
        self._peer.write((), released_bytes)


class Faults(Actor):
    def __init__(
        self,
        routes: Mapping[int, ActorAddress],
        sends_to: ActorAddress,
        move_clock: Callable[[float], None],
    ) -> None:
        super().__init__()
        self._routes, self._sends_to = routes, sends_to
        self._move_clock = move_clock
        self._faults: list[InjectedFault] = []
        self._peers: dict[int, Peer] = {}
        self._heartbeats: dict[int, Request] = {}

    # --- requests

    @handles(Request)
    def on_request(self, request: Request) -> None:
        peer, code = request.peer, request.command.code
        self._peers[peer.peer_id] = peer
        if code == RequestCode.HEART_BEAT:
            self._heartbeats[peer.peer_id] = request
        fault = self._fault_of(code)
        to = self._routes[code]
        if fault is None:
            to.tell(request)
        elif fault.effect is Effect.REFUSE:
            request.answer(fault.code, remark=fault.remark)
        elif fault.effect is Effect.LOSE_ANSWER:
            to.tell(replace(request, peer=_DeafPeer(peer)))
        elif fault.effect is Effect.DELAY:
            self.after(fault.delay_ms, Forward(request, to))

    @handles(Sends)
    def on_sends(self, sends: Sends) -> None:
        peer = sends.peer
        self._peers[peer.peer_id] = peer
        if not self._faults:
            self._sends_to.tell(sends)
            return
        # Each send is a request of its own, and the first of them releases the bytes of all.
        request_bytes = sends.request_bytes
        for send in sends.sends:
            one, request_bytes = Sends(peer, [send], request_bytes), 0
            fault = self._fault_of(send.shape.code)
            if fault is None:
                self._sends_to.tell(one)
            elif fault.effect is Effect.REFUSE:
                frame = failure(send, fault.code, remark=fault.remark)
                peer.write((frame,) if frame is not None else (), one.request_bytes)
            elif fault.effect is Effect.LOSE:
                peer.write((), one.request_bytes)
            elif fault.effect is Effect.LOSE_ANSWER:
                self._sends_to.tell(replace(one, peer=_DeafStreamPeer(peer)))
            else:
                self.after(fault.delay_ms, Forward(one, self._sends_to))

    @handles(Forward)
    def on_forward(self, message: Forward) -> None:
        message.to.tell(message.message)

    @handles(PeerClosed)
    def on_peer_closed(self, message: PeerClosed) -> None:
        self._peers.pop(message.peer.peer_id, None)
        self._heartbeats.pop(message.peer.peer_id, None)

    def _fault_of(self, code: int) -> InjectedFault | None:
        self._faults = [each for each in self._faults if not each.is_ended]
        return next((each for each in self._faults if each.takes(code)), None)

    # --- the test

    @handles(AddFault)
    def on_add_fault(self, message: AddFault) -> None:
        self._faults.append(message.fault)
        message.reply(None)

    @handles(CutConnections)
    def on_cut_connections(self, message: CutConnections) -> None:
        peers = [each for each in self._peers.values() if isinstance(each, Connection)]
        for peer in peers:
            peer.address.tell(Close("cut by a test"))
        message.reply(len(peers))

    @handles(MoveClock)
    def on_move_clock(self, message: MoveClock) -> None:
        self._move_clock(message.by_ms)
        for request in self._heartbeats.values():
            command = replace(request.command, flag=request.command.flag | ONEWAY_FLAG)
            self._routes[command.code].tell(replace(request, command=command))
        message.reply(None)

    @handles(SetDiskFull)
    def on_set_disk_full(self, message: SetDiskFull) -> None:
        """Tell PutMessage at once what CleanFiles tells it at its next look at the disk."""
        reason = "the disk is full: make room" if message.is_full else None
        self._sends_to.tell(WritesForbidden(reason, source=DISK_USE))
        message.reply(None)
