"""Servers that listen on free ports of this machine, and the client's end of a connection.

`Line` speaks TCP to a server that really listens; `PairedLine` leads into a simulated broker over a
socket pair, and says itself when its sockets are ready.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from select import EPOLLIN, EPOLLOUT
from socket import (
    AF_INET,
    IPPROTO_TCP,
    SO_RCVBUF,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
    socket,
    socketpair,
)
from typing import Any, Self

from actors.broker_server import RunningBroker, start_broker
from actors.config import NamesrvConfig
from actors.engine.system import ActorSystem
from actors.namesrv_server import RunningNamesrv, start_namesrv
from actors.network.connection import Connection
from actors.network.connections import Accepted
from protocol.frame import RemotingCommand, encode
from protocol.stream import CommandStream
from storage.clock import Clock
from storage.config import StoreConfig
from storage.files.disk import RealDisk
from tests.support.brokers import BROKER, SimulatedBroker

HOST = "127.0.0.1"
WAIT_S = 20.0
"""Maximum wait of a test for an immediate event, on a busy machine, in seconds."""

CLIENT_PORT = 40_000
_opaques = count(1)


def store_at(root: Path | str) -> StoreConfig:
    """A store with small files, large enough for a message of 4 MiB."""
    return StoreConfig(
        root=str(root),
        commit_log_file_bytes=16 << 20,
        consume_queue_file_bytes=60_000,
        max_hash_slots=2_000,
        max_index_entries=8_000,
    )


@contextmanager
def serving_broker(
    root: Path, *, clock: Clock | None = None, store: StoreConfig | None = None, **settings: Any
) -> Iterator[RunningBroker]:
    """A broker on three free ports; stopped afterwards, cleanly. `store`: if not `store_at`."""
    config = replace(BROKER, **{"listen_port": 0, "bind_address": HOST, **settings})
    system = ActorSystem.real(disk=RealDisk(), clock=clock)
    try:
        running = start_broker(config, store or store_at(root), system=system)
        yield running
        assert running.stop(WAIT_S), "not stopped cleanly"
    finally:
        system.stop(WAIT_S)


@contextmanager
def serving_namesrv(root: Path) -> Iterator[RunningNamesrv]:
    """A name server on a free port; stopped afterwards, cleanly."""
    config = NamesrvConfig(
        listen_port=0,
        bind_address=HOST,
        kv_config_path=str(root / "kv.json"),
        config_store_path=str(root / "namesrv.properties"),
    )
    system = ActorSystem.real(disk=RealDisk())
    try:
        running = start_namesrv(config, system=system)
        yield running
        assert running.stop(WAIT_S), "not stopped cleanly"
    finally:
        system.stop(WAIT_S)


def connection_of(system: ActorSystem, line: "Line") -> Connection:
    """The server's end of a line."""
    found = [
        actor
        for actor in [*system.live]
        if isinstance(actor, Connection) and actor.remote == line.local
    ]
    assert len(found) == 1, found
    return found[0]


class Line:
    """The client's end of one connection: commands in, commands out."""

    def __init__(self, sock: socket) -> None:
        self._socket = sock
        self._frames = CommandStream()
        self._received: list[RemotingCommand] = []

    @classmethod
    def to(cls, port: int, *, receive_bytes: int | None = None) -> Self:
        """Connects; `receive_bytes` makes the window small."""
        sock = socket(AF_INET, SOCK_STREAM)
        if receive_bytes is not None:
            sock.setsockopt(SOL_SOCKET, SO_RCVBUF, receive_bytes)
        sock.settimeout(WAIT_S)
        sock.connect((HOST, port))
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # what is sent arrives now, in its own piece
        return cls(sock)

    @property
    def local(self) -> str:
        """This end, as the server calls it."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def send(self, *commands: RemotingCommand) -> list[int]:
        """Numbers them and sends them in one go; returns the numbers."""
        self.send_bytes(frames_of(commands))
        return [command.opaque for command in commands]

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, wanted: int = 1) -> list[RemotingCommand]:
        """The next commands; ConnectionError when the stream ends before they are there."""
        while len(self._received) < wanted:
            if not self._read():
                raise ConnectionError(f"closed after {len(self._received)} of {wanted}")
        taken, self._received = self._received[:wanted], self._received[wanted:]
        return taken

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """One request and its answer, which must be the next; notices before it are dropped."""
        (opaque,) = self.send(command)
        while not (answer := self.receive()[0]).is_response:
            pass
        assert answer.opaque == opaque, answer
        return answer

    def rest(self) -> list[RemotingCommand]:
        """Everything up to the end of the stream."""
        while self._read():
            pass
        taken, self._received = self._received, []
        return taken

    def _read(self) -> bool:
        try:
            data = self._socket.recv(1 << 18)
        except ConnectionResetError:  # closed with our bytes unread
            return False
        self._received += self._frames.receive(data)
        return bool(data)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PairedLine(Line):
    """The client's end of a connection to a simulated broker."""

    def __init__(self, made: SimulatedBroker, host: str = HOST, door: str = "connections") -> None:
        near, far = socketpair()
        far.setblocking(False)
        near.setblocking(False)
        super().__init__(near)
        self._far, self._made = far, made
        self._remote = (host, CLIENT_PORT + next(_opaques))
        accepted = Accepted(far, self._remote, made.broker.service())
        made.system.address(door).tell(accepted)
        made.system.drain()

    @property
    def local(self) -> str:
        host, port = self._remote
        return f"{host}:{port}"

    def send_bytes(self, data: bytes) -> None:
        """Sends and lets the broker read, as often as it takes."""
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                raise AssertionError("the broker does not read") from None
            self.wind()

    def leave(self) -> socket:
        """Goes; the broker's end, which it may still have to be told of."""
        self.close()
        return self._far

    def wind(self) -> None:
        """The broker may read and write once more, and does all that follows from it."""
        self._made.system.loop.make_ready(self._far, EPOLLIN | EPOLLOUT)
        self._made.system.drain()

    def receive_now(self) -> list[RemotingCommand]:
        """Return the received bytes so far."""
        try:
            while self._read():
                self.wind()
        except BlockingIOError:
            pass
        taken, self._received = self._received, []
        return taken

    def receive_some(self) -> list[RemotingCommand]:
        """Return the bytes of one read of the socket; the broker does not notice by itself."""
        self._read()
        taken, self._received = self._received, []
        return taken

    def is_closed(self) -> bool:
        """Whether the stream has ended, with nothing left in it."""
        try:
            return not self._read()
        except BlockingIOError:
            return False


@contextmanager
def paired_lines(made: SimulatedBroker, lines: int, host: str = HOST) -> Iterator[list[PairedLine]]:
    """Lines into a simulated broker, which gets its `connections` first and is stopped at last.

    What is appended to them is closed with them.
    """
    made.system.start(made.broker.connections_child())
    opened = [PairedLine(made, host) for _ in range(lines)]
    try:
        yield opened
        if made.system.live:
            made.stop()
    finally:
        for line in opened:
            line.close()


def frames_of(commands: Sequence[RemotingCommand]) -> bytes:
    """Their frames, each with a number of its own."""
    for command in commands:
        command.opaque = next(_opaques)
    return b"".join(map(encode, commands))
