"""Attackers in a process: `python -m tests.security.attackers NAME PORT`.

It prints what it did, and the number of outcomes once all have arrived. It holds the state until it
is told to repeat it or to end. It runs at low priority, since real attackers would use other
machines. inventors.py has the attackers that invent names.
"""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from select import select
from socket import SO_LINGER, SO_RCVBUF, SOL_SOCKET, create_connection, socket
from struct import pack
from time import monotonic

from protocol.frame import FRAME_BYTES_MAX, encode
from tests.security.inventors import (
    a12_registrations,
    a18_groups,
    a18_topics,
    a36_brokers,
    a36_topics,
)
from tests.support.brokers import pull_command

WAIT_S = 60.0
OPEN_MAX = 8192
ELSEWHERE = "10.38.0.1"
_MAKE = f"ip link set lo up && ip addr add {ELSEWHERE}/16 dev lo"
IN_A_NETWORK = ["unshare", "-rn", "sh", "-c", f'{_MAKE} && exec "$@"', "sh"]
"""Before a command: all of 10.38.0.0/16 is this machine there, as 127.0.0.0/8 is."""

AGAIN = "again"
NICE = 5
HELLO = b"\x16\x03\x01\x02\x00\x01"
"""The first bytes of a TLS handshake."""


def connect(
    port: int, stack: ExitStack, receive_bytes: int | None = None, host: str = ""
) -> socket:
    line = stack.enter_context(create_connection(("127.0.0.1", port), WAIT_S, (host, 0)))
    # Its end is a reset: thousands of ports that wait for a minute leave none for other tests.
    line.setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
    if receive_bytes is not None:
        line.setsockopt(SOL_SOCKET, SO_RCVBUF, receive_bytes)
    return line


def still_open(lines: list[socket], at_most: int, wait_s: float = WAIT_S) -> list[socket]:
    """Return the connections that the server has not closed, once they are few enough; close the
    others.
    """
    until_s = monotonic() + wait_s
    while True:
        left = []
        for line in lines:
            line.setblocking(False)
            try:
                is_open = line.recv(1 << 16) != b""
            except BlockingIOError:
                is_open = True
            except OSError:
                is_open = False
            if is_open:
                left.append(line)
            else:
                line.close()
        lines = left
        if len(lines) <= at_most or monotonic() > until_s:
            return lines
        select([], [], [], 0.05)


def a1_slow_bytes(port: int, stack: ExitStack) -> str:
    for _ in range(500):
        connect(port, stack).sendall(b"\0")
    return "500 connections, a byte each"


def a2_half_frames(port: int, stack: ExitStack) -> str:
    head = pack(">iI", FRAME_BYTES_MAX - 4, 100)
    lines = []
    for _ in range(1000):
        lines.append(connect(port, stack))
        with suppress(OSError):
            lines[-1].sendall(head + bytes(1 << 20))
    left = still_open(lines, 32)
    return f"1,000 half frames of 16 MiB, 1 MiB of each sent, open: {len(left)}"


def a4_impossible_lengths(port: int, stack: ExitStack) -> str:
    lines = []
    for number in range(1000):
        lines.append(connect(port, stack))
        lines[-1].sendall(pack(">iI", (0, 3, -1, (1 << 31) - 1)[number % 4], 10))
    return f"1,000 lengths that cannot be, open: {len(still_open(lines, 0))}"


def a7_handshakes(port: int, stack: ExitStack) -> str:
    """Start TLS handshakes from 400 addresses."""
    lines: list[socket] = []
    for number in range(10_000):
        line = connect(port, stack, host=f"127.7.{number % 400 // 200}.{number % 200 + 1}")
        with suppress(OSError):
            line.sendall(HELLO)
        lines.append(line)
        if len(lines) > OPEN_MAX // 2:
            lines = still_open(lines, len(lines))
    return f"10,000 handshakes begun, open: {len(still_open(lines, 256 + 1024))}"


def a38_connections(port: int, stack: ExitStack) -> str:
    lines = [connect(port, stack) for _ in range(5000)]
    return f"5,000 connections from one address, open: {len(still_open(lines, len(lines)))}"


def a38_from_elsewhere(port: int, stack: ExitStack) -> str:
    """Connect from 200 addresses that are not loopback (elsewhere.py); more than 4,000 are too
    many.
    """
    lines: list[socket] = []
    for number in range(20_000):
        source = f"10.38.{1 + number % 200}.1"
        lines.append(stack.enter_context(create_connection((ELSEWHERE, port), WAIT_S, (source, 0))))
        if len(lines) > OPEN_MAX // 2:
            lines = still_open(lines, len(lines))
    return f"20,000 connections from 200 addresses, open: {len(still_open(lines, 3000))}"


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


@cache
def _waiting_pulls(queue_id: int, count: int) -> bytes:
    pulls = (pull_command(queue_id=queue_id, hold_ms=60_000, topic="Topic") for _ in range(count))
    return b"".join(map(encode, pulls))


def a40_held_pulls(port: int, stack: ExitStack) -> str:
    """Pull from empty queues, each connection from one, so that pulls are held up to the limit."""
    for queue_id in range(1, 11):
        line = connect(port, stack)
        for _ in range(100):
            line.sendall(_waiting_pulls(queue_id, 300))
    return "300,000 pulls that wait, 30,000 of a connection"


def a40_all_held_pulls(port: int, stack: ExitStack) -> str:
    """So many that some of them are answered at once."""
    lines = [connect(port, stack) for _ in range(30)]
    answers, until_s = 0, monotonic() + WAIT_S
    for queue_id, line in enumerate(lines, 1):
        for _ in range(40):
            line.sendall(_waiting_pulls(queue_id, 250))
    while answers < 100_000 and monotonic() < until_s:
        for line in lines:
            line.setblocking(False)
            with suppress(BlockingIOError):
                answers += line.recv(1 << 20).count(b'"code":19')
    return f"300,000 pulls that wait, 10,000 of a connection, answered: {answers}"


ATTEMPTS: dict[str, Callable[[int, ExitStack], str]] = {
    "A1": a1_slow_bytes,
    "A2": a2_half_frames,
    "A4": a4_impossible_lengths,
    "A38": a38_connections,
    "A39": a39_greedy_pullers,
    "A40": a40_held_pulls,
}
FROM_ELSEWHERE = "A38 from elsewhere"
MORE_ATTEMPTS: dict[str, Callable[[int, ExitStack], str]] = {
    "A7": a7_handshakes,
    "A12": a12_registrations,
    "A18 topics": a18_topics,
    "A18 groups": a18_groups,
    "A36 topics": a36_topics,
    "A36 brokers": a36_brokers,
    "A40 in all": a40_all_held_pulls,
}
"""Attempts that take longer or need another server than a broker."""


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    os.nice(NICE)
    _, hard = getrlimit(RLIMIT_NOFILE)
    setrlimit(RLIMIT_NOFILE, (min(hard, OPEN_MAX), hard))
    attempt = (ATTEMPTS | MORE_ATTEMPTS | {FROM_ELSEWHERE: a38_from_elsewhere})[name]
    while True:
        with ExitStack() as stack:
            print(attempt(port, stack), flush=True)
            if sys.stdin.readline().strip() != AGAIN:
                return


if __name__ == "__main__":
    main()
