"""The opening of connections to other brokers, off the loop: a name is looked up, and perhaps
nobody answers.

Owns: nothing that lasts; a socket belongs to whoever asked.
Told by: HaSlave (`Dial`).   Tells: it (`Dialed`).
"""

from dataclasses import dataclass
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection, socket
from typing import ClassVar

from actors.engine.actor import Actor, Where, handles
from actors.engine.address import Address
from storage.errors import reason_of

DIAL_TIMEOUT_S = 3.0


@dataclass(slots=True)
class Dialed:
    """An open socket that does not block; or why there is none."""

    sock: socket | None
    failure: str = ""

    def refuse(self, _remark: str) -> None:
        """Whoever asked is gone."""
        if self.sock is not None:
            self.sock.close()


@dataclass(slots=True)
class Dial:
    """Connect to `host:port`, then tell `reply_to`."""

    address: str
    reply_to: Address

    def refuse(self, remark: str) -> None:
        """The dialler died with it."""
        self.reply_to.tell(Dialed(None, remark))


class Dialler(Actor):
    """Runs on a thread."""

    where: ClassVar[Where] = "thread"

    @handles(Dial)
    def on_dial(self, message: Dial) -> None:
        """One try."""
        host, _, port = message.address.rpartition(":")
        try:
            sock = create_connection((host.strip("[]"), int(port)), DIAL_TIMEOUT_S)
        except OSError as error:
            message.reply_to.tell(Dialed(None, reason_of(error)))
            return
        except ValueError as error:  # no port
            message.reply_to.tell(Dialed(None, str(error)))
            return
        sock.setblocking(False)
        sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        message.reply_to.tell(Dialed(sock))
