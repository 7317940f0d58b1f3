"""Fuzzed bytes of a hostile peer on a connection to a whole broker: other peers are unaffected.

    first byte    bit 0: the broker has access control; bit 1: the peer waits for answers;
                  the others: into how many pieces the rest is cut
    the rest      what it sends, so that the seeds of fuzz.py are whole frames

The broker is simulated. After some hundred inputs another one begins, because its log grows.
"""

from contextlib import ExitStack, suppress

from structlog.testing import capture_logs

from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.headers.client import QueueHeader
from tests.support.brokers import SimulatedBroker
from tests.support.guarded import GuardedBroker, signed
from tests.support.sockets import PairedLine, paired_lines

INPUTS_MAX = 300


class AttackedBroker:
    """A broker and a neighbour of the stranger's."""

    def __init__(self, *, has_accounts: bool) -> None:
        self._stack = ExitStack()
        self._has_accounts = has_accounts
        self.inputs = 0
        with capture_logs():
            self.made = GuardedBroker(1) if has_accounts else SimulatedBroker(1)
            self.made.send()
            self._lines = self._stack.enter_context(paired_lines(self.made, 1))

    def take(self, data: bytes, pieces: int, *, waits: bool) -> None:
        """AssertionError if an actor fails, or the neighbour gets no answer."""
        self.inputs += 1
        with capture_logs() as logs:
            line = PairedLine(self.made, "198.51.100.1")
            step = max(len(data) // pieces, 1)
            with suppress(OSError, AssertionError):  # closed, or no longer read
                for at in range(0, len(data), step):
                    line.send_bytes(data[at : at + step])
                    if waits:
                        self.made.system.advance(1)
            self.made.system.advance(20)
            far = line.leave()
            if far.fileno() != -1:
                line.wind()
            self.made.system.advance(20)
            self._ask()
        failed = [
            each for each in logs if each["event"] in ("actor failed", "request handler failed")
        ]
        assert not failed, failed

    def _ask(self) -> None:
        asked = RemotingCommand(Code.GET_MAX_OFFSET, QueueHeader("Topic", 0).encode())
        (neighbour,) = self._lines
        neighbour.send(signed(asked, "shop-account") if self._has_accounts else asked)
        (answer,) = [each for each in neighbour.receive_now() if each.is_response]
        assert answer.code == 0, answer

    def end(self) -> None:
        with capture_logs():
            self._stack.close()


_brokers: dict[bool, AttackedBroker] = {}


def take(data: bytes) -> None:
    """One input of a fuzzer."""
    if len(data) < 2:
        return
    has_accounts, waits = bool(data[0] & 1), bool(data[0] & 2)
    broker = _brokers.get(has_accounts)
    if broker is not None and broker.inputs >= INPUTS_MAX:
        broker.end()
        broker = None
    if broker is None:
        broker = _brokers[has_accounts] = AttackedBroker(has_accounts=has_accounts)
    broker.take(data[1:], 1 + (data[0] >> 2), waits=waits)


def end() -> None:
    """Ends the brokers that are there."""
    while _brokers:
        _brokers.popitem()[1].end()
