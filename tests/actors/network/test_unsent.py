"""What of the waiting answers goes to a socket in one call, and what comes back of it."""

from collections import deque

from actors.network.sends import Buffer
from actors.network.unsent import (
    BUFFERS_PER_SEND,
    JOINED_BYTES_MAX,
    SEND_BYTES,
    next_buffers,
    put_back,
)


def taken(*buffers: Buffer, may_join: bool = True) -> tuple[list[Buffer], int, list[Buffer]]:
    """What is offered, its bytes, and what is left waiting."""
    unsent = deque(buffers)
    offered, size = next_buffers(unsent, sum(map(len, buffers)), may_join=may_join)
    return [*offered], size, [*unsent]


def test_small_buffers_are_joined_and_large_ones_go_as_they_are() -> None:
    small, large = b"ab", memoryview(bytes(JOINED_BYTES_MAX))
    assert taken(small, memoryview(b"cd"), small) == ([b"abcdab"], 6, [])
    offered, size, left = taken(large, large)
    assert [each is large for each in offered] == [True, True]
    assert (size, left) == (2 * JOINED_BYTES_MAX, [])
    offered, size, left = taken(small, large, large)
    assert [len(each) for each in offered] == [2 + 2 * JOINED_BYTES_MAX]


def test_what_has_waited_for_the_peer_is_not_touched() -> None:
    views = [memoryview(b"ab"), memoryview(b"cd")]
    offered, size, left = taken(*views, may_join=False)
    assert [given is view for given, view in zip(offered, views, strict=True)] == [True, True]
    assert (size, left) == (4, [])


def test_one_buffer_is_not_copied() -> None:
    view = memoryview(b"abc")
    offered, _, _ = taken(view)
    assert offered[0] is view


def test_no_call_offers_too_many_buffers_or_too_many_bytes() -> None:
    offered, size, left = taken(*[b"x"] * (BUFFERS_PER_SEND + 3), may_join=False)
    assert (len(offered), size, len(left)) == (BUFFERS_PER_SEND, BUFFERS_PER_SEND, 3)
    half = bytes(SEND_BYTES // 2 + 1)
    offered, size, left = taken(half, half, half)
    assert (len(offered), size, len(left)) == (2, 2 * len(half), 1)


def test_what_the_socket_did_not_take_comes_first_again() -> None:
    unsent: deque[Buffer] = deque([b"later"])
    put_back(unsent, [b"ab", memoryview(b"cdef"), b"gh"], 3)
    assert [*unsent] == [b"def", b"gh", b"later"]
    assert all(type(each) is bytes for each in unsent)
