"""Cost and capacity of several masters: `python -m tests.bench.masters` prints a table.

The frames of tests/bench/send_cpu.py are spread over the masters in turn, as a client does by the
route. The loads are: none; a number of sends in flight to one master after the other, so that
batches have equal size; a fixed total rate, send by send; and the maximum of one and two masters
with two clients. The table shows the processor time of brokers and supervisor, and of the clients.
Rounds alternate, and medians count: other work on the machine delays them more than it changes
processor times.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from time import perf_counter, process_time

from protocol.codes import SerializeType
from protocol.frame import decode_frame
from tests.bench.process_figures import scheduled_us
from tests.bench.send_cpu import READ_BYTES, send_frames
from tests.compat.servers import OurMasters, OurNameServer

QUEUES = 8
CLIENTS = 2
FILES = {
    "mappedFileSizeCommitLog": str(128 << 20),
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
    "scrubEnable": "false",
}
"""File sizes that let the machine hold seven stores."""

TITLES = {
    "in turn": "{} at a time, to each in turn",
    "paced": "{:,} a second",
    "pressed": f"{CLIENTS} × {{}} under way",
}
IDLE_S = 5.0
PAUSE_S = 50e-6
"""Pause of the paced client when no send is due."""


class Line:
    """A connection to one master, and how many answers are due."""

    def __init__(self, address: str, frames: Sequence[bytes]) -> None:
        host, _, port = address.rpartition(":")
        self.socket = create_connection((host, int(port)))
        self.socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self.due = 0
        self._frames, self._next, self._waiting = frames, 0, b""

    def send(self, count: int) -> None:
        if self._next + count > len(self._frames):
            self._next = 0
        self.socket.sendall(b"".join(self._frames[self._next : self._next + count]))
        self._next += count
        self.due += count

    def receive(self) -> None:
        """Takes the answers that are there; waits for one."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        if not self._waiting and len(data) >= 4:
            end = 4 + int.from_bytes(data[:4])
            if len(data) >= end and (code := decode_frame(data[4:end]).code):
                raise ConnectionError(f"the broker answers {code}")
        data, position = self._waiting + data, 0
        while len(data) >= position + 4:
            end = position + 4 + int.from_bytes(data[position : position + 4])
            if len(data) < end:
                break
            position, self.due = end, self.due - 1
        self._waiting = data[position:]


class Lines:
    """A client's: one to each master."""

    def __init__(self, addresses: Sequence[str]) -> None:
        frames = send_frames(QUEUES, SerializeType.ROCKETMQ)
        self._lines = [Line(address, frames) for address in addresses]
        self._selector = DefaultSelector()
        for line in self._lines:
            self._selector.register(line.socket, EVENT_READ, line)

    def paced(self, seconds: float, rate: float) -> int:
        """One send after the other, each to the next master; how many were answered.

        One that is late makes those behind it late: they do not come together.
        """
        began, next_s, sent = perf_counter(), 0.0, 0
        while (passed_s := perf_counter() - began) < seconds:
            if passed_s < next_s:
                self._receive(min(PAUSE_S, next_s - passed_s))
                continue
            self._lines[sent % len(self._lines)].send(1)
            next_s, sent = max(next_s + 1 / rate, passed_s), sent + 1
        while any(line.due for line in self._lines):
            self._receive(1)
        return sent

    def in_turn(self, seconds: float, at_a_time: int) -> int:
        """So many to one master, when all are answered as many to the next."""
        began, sent = perf_counter(), 0
        while perf_counter() - began < seconds:
            for line in self._lines:
                line.send(at_a_time)
                sent += at_a_time
                while line.due:
                    line.receive()
        return sent

    def pressed(self, seconds: float, under_way: int) -> int:
        """So many under way in all, at each master the next when all there are answered."""
        began, sent, share = perf_counter(), 0, under_way // len(self._lines)
        while perf_counter() - began < seconds:
            for line in self._lines:
                if not line.due:
                    line.send(share)
                    sent += share
            self._receive(1)
        while any(line.due for line in self._lines):
            self._receive(1)
        return sent

    def _receive(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data.receive()


class Host:
    """Masters under one process, and what they have used."""

    def __init__(self, scratch: Path, names: OurNameServer, count: int) -> None:
        self.count = count
        self._masters = OurMasters(scratch, names, count, FILES)

    def start(self, stack: ExitStack) -> None:
        stack.enter_context(self._masters)

    def _used_us(self) -> float:
        return sum(map(scheduled_us, {self._masters.pid, *self._masters.pids().values()}))

    def idle_us(self, seconds: float) -> float:
        """Return the processor time of a second without a load."""
        before_us = self._used_us()
        Event().wait(seconds)
        return (self._used_us() - before_us) / seconds

    def load(self, way: str, seconds: float, amount: float, clients: int) -> "Figures":
        """Send with this many clients; `amount` is the rate or the sends in flight of each."""
        arguments = [way, str(seconds), str(amount), *self._masters.addresses().values()]
        before_us, began = self._used_us(), perf_counter()
        command = [sys.executable, "-m", __spec__.name, "--client", *arguments]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(clients)]
        told = [json.loads(client.communicate(timeout=seconds + 60)[0]) for client in running]
        used_us, messages = self._used_us() - before_us, sum(each["messages"] for each in told)
        client_us = sum(each["cpu_s"] for each in told) * 1e6
        took_s = max(each["seconds"] for each in told)
        assert perf_counter() - began >= took_s
        return Figures(messages / took_s, used_us / messages, client_us / messages)


class Figures:
    """Figures of one round, or medians of several."""

    def __init__(self, per_second: float, broker_us: float, client_us: float) -> None:
        self.per_second, self.broker_us, self.client_us = per_second, broker_us, client_us

    @classmethod
    def of(cls, rounds: Sequence["Figures"]) -> "Figures":
        return cls(
            median(each.per_second for each in rounds),
            median(each.broker_us for each in rounds),
            median(each.client_us for each in rounds),
        )


def measure(hosts: Sequence[Host], options: argparse.Namespace) -> None:
    """Every load at every host in turn, round after round; prints the table."""
    loads = [("in turn", number, 1) for number in options.at_a_time]
    loads += [("paced", rate, 1) for rate in options.rates]
    loads += [("pressed", number, CLIENTS) for number in options.under_way]
    for host in hosts:
        print(f"{host.count} masters without a load: {host.idle_us(IDLE_S):,.0f} µs a second")
    columns = "load", "masters", "messages/s", "brokers µs/message", "to 1 master", "clients µs"
    print(f"\n| {' | '.join(columns)} |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for way, amount, clients in loads:
        # four masters and two clients would share two processors: nothing but noise
        chosen = [host for host in hosts if way != "pressed" or host.count <= CLIENTS]
        found: dict[int, list[Figures]] = {host.count: [] for host in chosen}
        for number in range(options.rounds + 1):
            for host in chosen:
                figures = host.load(way, options.seconds, amount, clients)
                if number:  # the first warms up
                    found[host.count].append(figures)
        title = TITLES[way].format(amount)
        alone = Figures.of(found[1])
        for count, rounds in found.items():
            each = Figures.of(rounds)
            print(
                f"| {title} | {count} | {each.per_second:,.0f} | {each.broker_us:.1f} |"
                f" {each.broker_us / alone.broker_us:.2f} | {each.client_us:.1f} |",
                flush=True,
            )


def run_client(way: str, seconds: str, amount: str, *addresses: str) -> None:
    """One client's process: says what it did, and what that took."""
    lines = Lines(addresses)
    used_s, began = process_time(), perf_counter()
    if way == "in turn":
        messages = lines.in_turn(float(seconds), int(amount))
    elif way == "paced":
        messages = lines.paced(float(seconds), float(amount))
    else:
        messages = lines.pressed(float(seconds), int(amount))
    told = {"messages": messages, "seconds": perf_counter() - began}
    print(json.dumps({**told, "cpu_s": process_time() - used_s}))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.masters", description=__doc__)
    parser.add_argument("--at-a-time", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--rates", type=int, nargs="*", default=[1_000, 8_000])
    parser.add_argument("--under-way", type=int, nargs="*", default=[64, 256], help="of a client")
    parser.add_argument("--masters", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round")
    options = parser.parse_args()
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        names = stack.enter_context(OurNameServer(Path(scratch, "names")))
        hosts = [Host(Path(scratch, str(count)), names, count) for count in options.masters]
        for host in hosts:
            host.start(stack)
        measure(hosts, options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        run_client(*sys.argv[2:])
    else:
        main()
