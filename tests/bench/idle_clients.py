"""Clients that only say that they are there: `python -m tests.bench.idle_clients HOST:PORT COUNT`.

Each has a connection and says so every 30 s, as the official clients do, one after the other.
Prints a line when all are there; ends when it is told to.
"""

import sys
from select import EPOLLIN, epoll
from socket import create_connection
from time import monotonic

from protocol.bodies import HeartbeatData, ProducerData
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand, encode

HEARTBEAT_S = 30.0
GROUP = "idle"
READ_BYTES = 4 << 10


def heartbeat(number: int) -> bytes:
    data = HeartbeatData(f"127.0.0.1@idle-{number}", producer_data_set=[ProducerData(GROUP)])
    return encode(RemotingCommand(RequestCode.HEART_BEAT, body=data.encode(), opaque=number))


def main() -> None:
    address, count = sys.argv[1], int(sys.argv[2])
    host, _, port = address.rpartition(":")
    poll, sockets = epoll(), []
    for _ in range(count):
        sock = create_connection((host, int(port)))
        sockets.append(sock)
        poll.register(sock, EPOLLIN)
    by_fd = {sock.fileno(): sock for sock in sockets}
    said = 0

    def say() -> None:
        nonlocal said
        sockets[said % count].sendall(heartbeat(said % count))
        said += 1

    for _ in range(count):
        say()
    answered: set[int] = set()
    while len(answered) < count:
        for fd, _ in poll.poll():
            if not by_fd[fd].recv(READ_BYTES):
                sys.exit("the broker closed a connection")
            answered.add(fd)
    print("all are there", flush=True)
    began = monotonic()
    while True:
        due = began + (said - count) * HEARTBEAT_S / count
        for fd, _ in poll.poll(max(due - monotonic(), 0)):
            if not by_fd[fd].recv(READ_BYTES):
                sys.exit("the broker closed a connection")
        if monotonic() >= due:
            say()


if __name__ == "__main__":
    main()
