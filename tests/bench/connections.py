"""Sends over many connections, in turn: `python -m tests.bench.connections HOST:PORT NAME=VALUE …`.

So many sends are on their way at a time (`inFlight`); each goes over the next of `connections`.
It tells what the Java client tells (Window.java): `begins`, then what it counted in `measureMs`.
"""

import sys
from collections import deque
from json import dumps
from select import EPOLLIN, epoll
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection
from time import perf_counter

from protocol.codes import ResponseCode, SerializeType
from protocol.frame import decode_frame
from tests.bench.send_cpu import send_frames

READ_BYTES = 64 << 10
WAIT_S = 0.05


class Line:
    """One connection, and when the sends on it left."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = create_connection((host, port))
        self.socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self.left: deque[float] = deque()
        self._rest = b""

    def send(self, frame: bytes) -> None:
        self.left.append(perf_counter())
        self.socket.sendall(frame)

    def read(self) -> tuple[list[bytes], list[float]]:
        """The whole answers that are there, without their length; and when their sends left."""
        data = self._rest + self.socket.recv(READ_BYTES)
        answers, position = [], 0
        while len(data) - position >= 4:
            end = position + 4 + int.from_bytes(data[position : position + 4])
            if end > len(data):
                break
            answers.append(data[position + 4 : end])
            position = end
        self._rest = data[position:]
        return answers, [self.left.popleft() for _ in answers]


class Counted:
    """Counts of answers from a moment on."""

    def __init__(self) -> None:
        self.began = perf_counter()
        self.seconds: list[float] = []
        self.failures = 0

    def as_json(self) -> str:
        ended, waits = perf_counter(), sorted(self.seconds)
        told = {
            "event": "ends",
            "messages": len(waits),
            "failures": self.failures,
            "seconds": ended - self.began,
            "p50Ms": waits[len(waits) // 2] * 1000,
            "p99Ms": waits[len(waits) * 99 // 100] * 1000,
            "maxMs": waits[-1] * 1000,
        }
        return dumps(told)


def main() -> None:
    address, *pairs = sys.argv[1:]
    host, _, port = address.rpartition(":")
    options = dict(pair.split("=", 1) for pair in pairs)
    lines = [Line(host, int(port)) for _ in range(int(options["connections"]))]
    poll, by_fd = epoll(), {}
    for line in lines:
        by_fd[line.socket.fileno()] = line
        poll.register(line.socket, EPOLLIN)
    frames = send_frames(int(options["queues"]), SerializeType.ROCKETMQ)
    sent = 0
    for _ in range(int(options["inFlight"])):
        lines[sent % len(lines)].send(frames[sent % len(frames)])
        sent += 1
    counted = Counted()
    begin = counted.began + int(options["warmUpMs"]) / 1000
    end = begin + int(options["measureMs"]) / 1000
    is_measuring = False
    while (now := perf_counter()) < end:
        if not is_measuring and now >= begin:
            is_measuring, counted = True, Counted()
            print(dumps({"event": "begins"}), flush=True)
        for fd, _ in poll.poll(WAIT_S):
            answers, left = by_fd[fd].read()
            now = perf_counter()
            for answer, then in zip(answers, left, strict=True):
                if decode_frame(answer).code == ResponseCode.SUCCESS:
                    counted.seconds.append(now - then)
                else:
                    counted.failures += 1
                lines[sent % len(lines)].send(frames[sent % len(frames)])
                sent += 1
    if not counted.seconds:
        sys.exit(f"none of {counted.failures} sends was taken")
    print(counted.as_json(), flush=True)
    for line in lines:
        line.socket.close()


if __name__ == "__main__":
    main()
