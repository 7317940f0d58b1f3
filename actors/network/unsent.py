"""What waits for a peer: how much of it goes to its socket in one call, and what comes back.

Plain functions over a connection's queue of buffers.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from actors.network.sends import Buffer

BUFFERS_PER_SEND = 512
SEND_BYTES = 1 << 20
"""Offered to the socket in one call; what it does not take of that is copied."""

JOINED_BYTES_MAX = 1 << 10
"""Buffers that are smaller on average cost more one by one than the copy that joins them."""


def next_buffers(
    unsent: deque[Buffer], unsent_bytes: int, *, may_join: bool
) -> tuple[Sequence[Buffer], int]:
    """Takes out what is offered in one call; gives it and its bytes.

    `may_join`: it was in memory a moment ago. What has waited may have to come from the disk, and
    only the kernel may meet an error there.
    """
    if unsent_bytes <= SEND_BYTES and len(unsent) <= BUFFERS_PER_SEND:
        buffers, offered = [*unsent], unsent_bytes
        unsent.clear()
    else:
        buffers, offered = [], 0
        while unsent and offered < SEND_BYTES and len(buffers) < BUFFERS_PER_SEND:
            buffers.append(unsent.popleft())
            offered += len(buffers[-1])
    if may_join and len(buffers) > 1 and offered < JOINED_BYTES_MAX * len(buffers):
        return (b"".join(buffers),), offered
    return buffers, offered


def put_back(unsent: deque[Buffer], buffers: Iterable[Buffer], sent: int) -> None:
    """Keeps what the socket did not take, as copies; what was not tried stays as it is.

    So a slow peer costs the memory of one try, not of all that waits for it.
    """
    left: list[Buffer] = []
    for buffer in buffers:
        if sent >= len(buffer):
            sent -= len(buffer)
        else:
            left.append(bytes(buffer[sent:]))
            sent = 0
    unsent.extendleft(reversed(left))
