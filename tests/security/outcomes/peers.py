"""Peers: connections of an attacker, and what became of what they sent, in a few words."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from socket import create_connection
from ssl import SSLContext
from threading import Event, Thread
from time import monotonic
from typing import Self

from protocol.codes import RequestCode as Code
from protocol.errors import FrameError
from protocol.frame import RemotingCommand, encode
from protocol.stream import CommandStream

WAIT_S = 10.0
TEXT_CHARS_MAX = 70
CLOSED, SILENCE = "closed", "silence"
_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
_opaques = count(1000)

Answer = RemotingCommand | str
"""Or CLOSED, or SILENCE."""


class Peer:
    """Connection of an attacker."""

    def __init__(self, address: str, tls: SSLContext | None = None) -> None:
        host, port = address.rsplit(":", 1)
        opened = create_connection((host, int(port)), WAIT_S)
        self.sock = opened if tls is None else tls.wrap_socket(opened, server_hostname=host)
        self._frames = CommandStream()
        self._received: list[RemotingCommand] = []

    def send(self, *commands: RemotingCommand) -> bool:
        """Numbers and sends them; whether the other side took it."""
        for command in commands:
            command.opaque = next(_opaques)
        return self.send_bytes(b"".join(map(encode, commands)))

    def send_bytes(self, data: bytes) -> bool:
        try:
            self.sock.sendall(data)
        except OSError:
            return False
        return True

    def receive(self, wait_s: float = WAIT_S) -> Answer:
        """Return the next bytes."""
        until = monotonic() + wait_s
        while not self._received:
            left_s = until - monotonic()
            if left_s <= 0:
                return SILENCE
            self.sock.settimeout(left_s)
            try:
                data = self.sock.recv(1 << 16)
            except TimeoutError:
                return SILENCE
            except OSError:
                return CLOSED
            if not data:
                return CLOSED
            try:
                self._received += self._frames.receive(data)
            except FrameError:
                return CLOSED
        return self._received.pop(0)

    def ask(self, command: RemotingCommand, wait_s: float = WAIT_S) -> Answer:
        """The answer to this one; what else comes is dropped."""
        if not self.send(command):
            return CLOSED
        while True:
            answer = self.receive(wait_s)
            if isinstance(answer, str) or answer.opaque == command.opaque:
                return answer

    def is_open(self) -> bool:
        """Whether it is, as far as this side has heard."""
        return self.receive(0.05) != CLOSED

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def told(answer: Answer) -> str:
    """In a few words: the code and, for a failure, what is said."""
    if isinstance(answer, str):
        return answer
    if answer.code == 0 or not answer.remark:
        return str(answer.code)
    remark = answer.remark.removeprefix(_EXCEPTION).partition(", org.apache")[0]
    return f"{answer.code} {' '.join(remark.split())[:TEXT_CHARS_MAX]}"


def together(found: list[str]) -> str:
    """Merge equal outcomes into one with a count."""
    counts = {each: found.count(each) for each in found}
    return "; ".join(each if n == 1 else f"{each} (× {n})" for each, n in counts.items())


@contextmanager
def neighbour(address: str) -> Iterator[list[float]]:
    """Asks again and again beside an attempt; the list gets each wait, in ms."""
    waits: list[float] = []
    over = Event()

    def ask() -> None:
        with Peer(address) as peer:
            while not over.wait(0.005):
                began_s = monotonic()
                if isinstance(peer.ask(RemotingCommand(Code.GET_BROKER_CONFIG)), str):
                    break
                waits.append((monotonic() - began_s) * 1000)

    asking = Thread(target=ask)
    asking.start()
    try:
        yield waits
    finally:
        over.set()
        asking.join()


def longest(waits: list[float]) -> str:
    return f"another client waits {max(waits, default=0):,.0f} ms at most"
