"""Stand-ins around an actor under test: its requester, its receivers, its system."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

from actors.engine.actor_address import ActorAddress
from actors.engine.inbox import Item
from actors.network.messages import Request
from actors.tables.messages import WhenRegistered
from protocol.codes import LanguageCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.host import pack_host
from storage.files.disk import Disk
from tests.support.actors import new_seed
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem

_numbers = count(1)


class RecordingPeer:
    """A client that keeps what it is sent."""

    def __init__(self, host: str = "192.0.2.7", *, is_fast: bool = False) -> None:
        self.is_fast = is_fast
        self.peer_id = next(_numbers)
        port = 40_000 + self.peer_id
        self.remote = f"{host}:{port}"
        self.host = pack_host(host, port)
        self.is_open = True
        self.received: list[RemotingCommand] = []
        self.failures = 0

    def note_failure(self) -> None:
        self.failures += 1

    def send(self, command: RemotingCommand) -> None:
        self.received.append(command)

    def notices(self) -> list[RemotingCommand]:
        """Return the server's requests since the last call."""
        notices = [command for command in self.received if not command.is_response]
        self.received = [command for command in self.received if command.is_response]
        return notices


class _Record:
    """Mail that stays where it arrives."""

    asleep = False

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def append(self, item: Item) -> None:
        if isinstance(item[1], WhenRegistered):
            item[1].pass_on()  # nothing has to be made here
        else:
            self.messages.append(item[1])

    def wake(self) -> None:
        raise AssertionError("never asleep")


class Told:
    """Stands in for another actor: its address, and what it was told."""

    def __init__(self, name: str) -> None:
        self._mail = _Record()
        self.address = ActorAddress(name, self._mail)

    def has_mail(self) -> bool:
        """Whether it was told anything since the last `take`."""
        return bool(self._mail.messages)

    def take(self) -> list[Any]:
        """Return the messages since the last call."""
        taken, self._mail.messages = self._mail.messages, []
        return taken


@contextmanager
def simulated(disk: Disk | None = None) -> Iterator[SimulatedSystem]:
    """A simulated system, on a fake disk if none is given; its seed is printed."""
    seed = new_seed()
    print(f"TROUPEMQ_SEED={seed}")
    system = SimulatedSystem(seed, disk if disk is not None else FakeDisk())
    try:
        yield system
    except BaseException:
        system.stop(10)
        raise
    assert system.stop(10), f"not stopped: {system!r}"


def request(
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes | None = None,
    *,
    version: int = 407,
    oneway: bool = False,
) -> RemotingCommand:
    """A request as a Java client makes it."""
    return RemotingCommand(
        int(code),
        dict(fields) if fields is not None else None,
        body,
        opaque=next(_numbers),
        flag=ONEWAY_FLAG if oneway else 0,
        language=LanguageCode.JAVA,
        version=version,
    )


def ask(
    system: SimulatedSystem, name: str, command: RemotingCommand, peer: RecordingPeer | None = None
) -> RemotingCommand:
    """The answer of the actor `name` of a simulated system."""
    peer = peer if peer is not None else RecordingPeer()
    tell(system, name, command, peer)
    answers = [each for each in peer.received if each.is_response]
    found = [each for each in answers if each.opaque == command.opaque]
    assert len(found) == 1, f"{len(found)} answers to {command}"
    return found[0]


def tell(system: SimulatedSystem, name: str, command: RemotingCommand, peer: RecordingPeer) -> None:
    """Hands a request to the actor `name` of a simulated system, and runs it."""
    system.address(name).tell(Request(command, peer))
    system.drain()
