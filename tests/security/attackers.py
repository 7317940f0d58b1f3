"""Attackers, a process of their own: `python -m tests.security.attackers NAME PORT`.

Says what it has done as soon as all of it has come, holds it until it is told to do it again or to
end, and gives way to everybody else on this machine: attackers would be elsewhere.
"""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from socket import SO_RCVBUF, SOL_SOCKET, create_connection, socket
from struct import pack

from protocol.frame import FRAME_BYTES_MAX, encode
from tests.support.brokers import pull_command

WAIT_S = 60.0
AGAIN = "again"
NICE = 5


def connect(port: int, stack: ExitStack, receive_bytes: int | None = None) -> socket:
    line = stack.enter_context(create_connection(("127.0.0.1", port), WAIT_S))
    if receive_bytes is not None:
        line.setsockopt(SOL_SOCKET, SO_RCVBUF, receive_bytes)
    return line


def a1_slow_bytes(port: int, stack: ExitStack) -> str:
    for _ in range(500):
        connect(port, stack).sendall(b"\0")
    return "500 connections, a byte each"


def a2_half_frames(port: int, stack: ExitStack) -> str:
    head = pack(">iI", FRAME_BYTES_MAX - 4, 100)
    closed = 0
    for _ in range(1000):
        line = connect(port, stack)
        try:
            line.sendall(head + bytes(1 << 20))
        except OSError:
            closed += 1
    return "1,000 half frames of 16 MiB, 1 MiB of each sent"


def a4_impossible_lengths(port: int, stack: ExitStack) -> str:
    for number in range(1000):
        line = connect(port, stack)
        line.sendall(pack(">iI", (0, 3, -1, (1 << 31) - 1)[number % 4], 10))
    return "1,000 lengths that cannot be"


def a38_connections(port: int, stack: ExitStack) -> str:
    for _ in range(5000):
        connect(port, stack)
    return "5,000 connections from one address"


def a39_greedy_pullers(port: int, stack: ExitStack) -> str:
    pull = encode(pull_command())
    for _ in range(100):
        line = connect(port, stack, 4096)
        line.settimeout(1)
        try:
            line.sendall(pull * 128)  # a quarter of a megabyte each
        except OSError:
            continue
    return "100 pullers that ask 32 MiB and read nothing"


def a40_held_pulls(port: int, stack: ExitStack) -> str:
    """Of an empty queue: they wait, as far as there is room for them."""
    pulls = b"".join(
        encode(pull_command(queue_id=3, hold_ms=60_000, topic="Topic")) for _ in range(300)
    )
    for _ in range(10):
        line = connect(port, stack)
        for _ in range(100):
            line.sendall(pulls)
    return "300,000 pulls that wait, 30,000 of a connection"


ATTEMPTS: dict[str, Callable[[int, ExitStack], str]] = {
    "A1": a1_slow_bytes,
    "A2": a2_half_frames,
    "A4": a4_impossible_lengths,
    "A38": a38_connections,
    "A39": a39_greedy_pullers,
    "A40": a40_held_pulls,
}


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    os.nice(NICE)
    _, hard = getrlimit(RLIMIT_NOFILE)
    setrlimit(RLIMIT_NOFILE, (min(hard, 8192), hard))
    while True:
        with ExitStack() as stack:
            print(ATTEMPTS[name](port, stack), flush=True)
            if sys.stdin.readline().strip() != AGAIN:
                return


if __name__ == "__main__":
    main()
