"""Requests to a broker without a socket.

    client = LocalClient(system, service)
    answer = client.request(RemotingCommand(RequestCode.GET_MAX_OFFSET, {...}))

It speaks to the actors exactly as a connection does, only that its requests come as values.  Under
simulation `request` winds the system until the answer is there.
"""

from collections.abc import Callable, Sequence
from itertools import count
from threading import Event

from actors.access.authorizer import Authorizer
from actors.engine.system import ActorSystem
from actors.network.connection import peer_ids
from actors.network.messages import PeerClosed
from actors.network.request import Request
from actors.network.sends import Buffer, Sends
from actors.network.service import Service, admitted
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.frame import encode
from protocol.host import pack_host
from protocol.send_wire import SEND_CODES, send_of
from protocol.stream import CommandStream
from troupemq.testing.simulation import SimulatedSystem

_opaques = count(1)


class LocalClient:
    """A peer in this process. May be used from one thread, not the loop."""

    def __init__(
        self, system: ActorSystem, service: Service, *, host: str = "127.0.0.1", port: int = 1
    ) -> None:
        self.peer_id = next(peer_ids)
        self.remote = f"{host}:{port}"
        self.host = pack_host(host, port)
        self.is_fast = service.is_fast
        self.is_open = True
        self.received: list[RemotingCommand] = []
        """Requests that the broker sent to this client (notices)."""
        self.failures = 0

        self._system = system
        self._service = service
        self._gate = None if service.guard is None else Authorizer(service.guard, host)
        self._waiting: dict[int, Callable[[RemotingCommand], None]] = {}

    # --- the peer's side

    def note_failure(self) -> None:
        self.failures += 1

    def send(self, command: RemotingCommand) -> None:
        """Take one answer or request of the broker."""
        self.write((encode(command),))

    def write(self, frames: Sequence[Buffer], released_bytes: int = 0) -> None:
        """Take frames as a connection would send them; a pull's body comes in pieces."""
        for command in CommandStream().receive(b"".join(frames)):
            if command.is_response:
                taken = self._waiting.pop(command.opaque, None)
                if taken is not None:
                    taken(command)
            else:
                self.received.append(command)

    # --- the caller's side

    def start(
        self, command: RemotingCommand, taken: Callable[[RemotingCommand], None] | None = None
    ) -> None:
        """Send one request; `taken` is called with its answer."""
        command.opaque = next(_opaques)
        if taken is not None:
            self._waiting[command.opaque] = taken
        self.deliver(command)

    def deliver(self, command: RemotingCommand) -> None:
        """Pass a request with its opaque, or an answer, to the actors, as a connection does."""
        sends_to = self._service.sends_to
        if command.code not in SEND_CODES or sends_to is None:
            self._service.pass_on(command, self, gate=self._gate)
            return
        try:
            sends = [send_of(command)]
            if self._gate is None or (sends := admitted(self._gate, self, sends)):
                sends_to.tell(Sends(self, sends, 0))
        except RemoteError as error:
            Request(command, self).answer(error.code, remark=error.remark)

    def request(self, command: RemotingCommand, timeout_s: float = 5.0) -> RemotingCommand:
        """Send one request and wait for its answer. Raises TimeoutError."""
        answers: list[RemotingCommand] = []
        arrived = Event()

        def take(answer: RemotingCommand) -> None:
            answers.append(answer)
            arrived.set()

        self.start(command, take)
        seed = ""
        if not isinstance(self._system, SimulatedSystem):
            arrived.wait(timeout_s)
        else:
            try:
                self._system.run_until(arrived.is_set, timeout_s * 1000)
            except TimeoutError as error:
                seed = f": {error}"
        if not answers:
            raise TimeoutError(f"no answer to request {command.code} within {timeout_s} s{seed}")
        return answers[0]

    def reply(self, answer: RemotingCommand) -> None:
        """Answer a request of the broker, one of `received`."""
        self._service.pass_on(answer, self)

    def close(self) -> None:
        """Close the connection at the broker."""
        self.is_open = False
        for address in self._service.tell_closed:
            address.tell(PeerClosed(self))
