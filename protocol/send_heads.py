"""The heads of sends that the connections of one port have learnt: bytes in, their shape out.

A producer of a hundred topics sends to one after the other, and a client is one connection for all
of its producers: each head comes again, but not at once.  One table serves a whole port, so that
its limits hold for all strangers together, and admission knows one shape of a head again,
whichever connection it comes by.
"""

from protocol.send_values import LearntShape

HEADS_MAX = 16_384
"""More topics in turn than that are learnt again and again, at 10 to 20 µs a send."""
HEADS_BYTES_MAX = 4 << 20
"""Of all of them; what is kept of each is some 600 bytes and three times its length."""
HEAD_BYTES_MAX = 1024
"""Longer ones, which no client writes with valid names, go through the general decoder."""


class LearntHeads:
    """A table of heads, each with what else has to be the same. Lives on one thread."""

    __slots__ = ("_bytes", "_shapes", "get")

    def __init__(self) -> None:
        self._shapes: dict[bytes, LearntShape] = {}
        self._bytes = 0
        self.get = self._shapes.get
        """The shape of a head; None: it is not known."""

    def keep(self, head: bytes, shape: LearntShape) -> bool:
        """Notes one that was not known; past a limit all are learnt again. False: too long."""
        if len(head) > HEAD_BYTES_MAX:
            return False
        if len(self._shapes) >= HEADS_MAX or self._bytes + len(head) > HEADS_BYTES_MAX:
            self._shapes.clear()
            self._bytes = 0
        self._shapes[head] = shape
        self._bytes += len(head)
        return True
