"""Cost of console users for the broker: `python -m tests.bench.console_load`.

A broker accepts sends at a fixed rate, half of its maximum here. In one half of the turns it serves
only them. In the other half, ten recorded visits to the console (tests/bench/console_sessions.py)
are played, and /metrics is scraped every 15 s. The console is a separate process, as always; it is
stopped (SIGSTOP) in the turns without it. Broker, console, senders and visitors share the machine.
The figures of a turn are the broker's processor time per message, the console's own, and the
latency of sends, from the write of a frame to its answer. The ratios compare two consecutive turns;
the goals are for their medians.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from selectors import EVENT_READ, SelectSelector
from signal import SIGCONT, SIGSTOP
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from time import perf_counter, process_time
from typing import Any

from protocol.codes import SerializeType
from tests.bench import console_sessions
from tests.bench.masters import Line
from tests.bench.process_figures import cpu_seconds
from tests.bench.send_cpu import send_frames
from tests.compat.child import Child
from tests.compat.patience import wait_until
from tests.compat.servers import OurBroker, OurNameServer
from troupemq import Admin, Message, Producer, PullConsumer, PushConsumer
from troupemq.client.admin.groups import GroupSettings
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.console.accounts import Accounts

QUEUES = 8
CONNECTIONS = 8
AT_A_TIME = 16
"""Frames of one write: as many as 64 threads of one client have ready at a time, or fewer."""

UNDER_WAY = 32
"""Pending sends of each connection while the maximum is searched."""

CLASS_S = 1e-5
"""Waits are counted in classes of so much."""

WARM_UP_S, MOST_S, SETTLE_S = 5.0, 5.0, 1.0
CPU_GOAL, P99_GOAL = 1.03, 1.10
BUSY, ORDERS, BILLING, LATE = "Busy", "Orders", "billing", "late"
MESSAGES = 200
SETTINGS = {
    "metricsExporterType": "PROM",
    "metricsPromExporterPort": "0",
    "scrubEnable": "false",
    "traceTopicEnable": "true",
}


class TimedLine(Line):
    """A connection to the broker that knows how long each answer took."""

    def __init__(self, address: str, frames: Sequence[bytes]) -> None:
        super().__init__(address, frames)
        self.classes: Counter[int] = Counter()
        """Number of answers by latency, in units of CLASS_S."""
        self._sent: list[tuple[float, int]] = []

    def send(self, count: int) -> None:
        self._sent.append((perf_counter(), count))
        super().send(count)

    def receive(self) -> None:
        before = self.due
        super().receive()
        answered, now_s = before - self.due, perf_counter()
        while answered:
            sent_s, count = self._sent[0]
            taken = min(answered, count)
            self.classes[int((now_s - sent_s) / CLASS_S)] += taken
            answered -= taken
            if taken == count:
                del self._sent[0]
            else:
                self._sent[0] = sent_s, count - taken


class Senders:
    """Prepared frames over a few connections: its own process, owned by one thread."""

    def __init__(self, address: str) -> None:
        frames = send_frames(QUEUES, SerializeType.ROCKETMQ, topic=BUSY)
        self._lines = [TimedLine(address, frames) for _ in range(CONNECTIONS)]
        self._selector = SelectSelector()  # for waits of less than a millisecond
        for line in self._lines:
            self._selector.register(line.socket, EVENT_READ, line)

    def run(self, seconds: float, rate: float) -> dict[str, float]:
        """At that rate; 0: as many as are taken."""
        for line in self._lines:
            line.classes.clear()
        began_s, used_s = perf_counter(), process_time()
        sent = self._paced(seconds, rate) if rate else self._pressed(seconds)
        took_s = perf_counter() - began_s
        while any(line.due for line in self._lines):
            self._receive(1)
        classes = sum((line.classes for line in self._lines), Counter[int]())
        return {
            "messages": sent,
            "seconds": took_s,
            "cpu_s": process_time() - used_s,
            "p50_ms": _percentile_ms(classes, 0.5),
            "p99_ms": _percentile_ms(classes, 0.99),
        }

    def _paced(self, seconds: float, rate: float) -> int:
        began_s, next_s, number = perf_counter(), 0.0, 0
        while (passed_s := perf_counter() - began_s) < seconds:
            if passed_s < next_s:
                self._receive(next_s - passed_s)
                continue
            self._lines[number % CONNECTIONS].send(AT_A_TIME)
            number, next_s = number + 1, next_s + AT_A_TIME / rate
        return number * AT_A_TIME

    def _pressed(self, seconds: float) -> int:
        began_s, sent = perf_counter(), 0
        while perf_counter() - began_s < seconds:
            for line in self._lines:
                if not line.due:
                    line.send(UNDER_WAY)
                    sent += UNDER_WAY
            self._receive(1)
        return sent

    def _receive(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data.receive()


def _percentile_ms(classes: Counter[int], share: float) -> float:
    left = classes.total() * share
    for place, count in sorted(classes.items()):
        left -= count
        if left <= 0:
            return (place + 1) * CLASS_S * 1000
    return 0.0


class Helper:
    """A process that does something for so many seconds when a line tells it, and says what."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", *words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.result()  # it is ready

    def begin(self, *words: float) -> None:
        assert self._process.stdin
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a helper of the bench ended; what it said is above")
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(console_sessions.TIMEOUT_S + 60)


@dataclass
class Watched:
    """A broker with some life, and a console of it."""

    broker: OurBroker
    metrics_port: int
    console: Child
    console_port: int
    password: str


@contextmanager
def watched(scratch: Path, more: Mapping[str, str] | None = None) -> Iterator[Watched]:
    """Messages, a group that has consumed them, one that is late; a console that has begun.

    `more`: settings of the broker.
    """
    with ExitStack() as stack:
        names = stack.enter_context(OurNameServer(scratch / "names"))
        settings = {**SETTINGS, **(more or {})}
        broker = stack.enter_context(OurBroker(scratch / "broker", names, settings))
        _fill(stack, names.address)
        data = scratch / "console"
        password = Accounts(data / "accounts.json").first_password
        assert password is not None
        ready = scratch / "console-ready"
        command = ["-m", "troupemq", "console", "-n", names.address, "-p", "0"]
        files = ["--data", str(data), "--ready-file", str(ready)]
        console = Child([sys.executable, *command, *files], scratch / "console.log")
        stack.callback(_end, console)
        wait_until(lambda: ready.exists() and bool(ready.read_text().strip()), "the console serves")
        metrics_port = json.loads((broker.scratch / "ready").read_text())["metrics"]
        port = json.loads(ready.read_text())["console"]
        yield Watched(broker, metrics_port, console, port, password)


def _end(console: Child) -> None:
    os.kill(console.pid, SIGCONT)
    console.stop()


def _fill(stack: ExitStack, namesrv: str) -> None:
    with Admin(namesrv) as admin:
        admin.create_topic(ORDERS, 4)
        admin.create_topic(BUSY, QUEUES)
    seen: set[str] = set()
    consumer = PushConsumer(
        BILLING,
        lambda views: seen.update(view.message_id for view in views),
        namesrv,
        begin=ConsumeFrom.FIRST_OFFSET,
    )
    consumer.subscribe(ORDERS)
    stack.enter_context(consumer)
    with Producer("shop", namesrv) as producer:
        for number in range(MESSAGES):
            body = b'{"order": %d, "note": "%s"}' % (number, b"as it was said " * 8)
            producer.send(Message(ORDERS, body, tags="new", keys=f"order-{number}"))
    with PullConsumer(LATE, namesrv, auto_commit=False, begin=ConsumeFrom.FIRST_OFFSET) as late:
        late.commit(dict.fromkeys(late.fetch_queues(ORDERS), 1))
    with Admin(namesrv) as admin:
        assert not admin.update_group(GroupSettings(group_name=LATE)).failures
    wait_until(lambda: len(seen) == MESSAGES, "all messages are consumed")


@dataclass
class Turn:
    """Figures of one turn."""

    sends: dict[str, Any]
    broker_us: float
    """Processor time of the broker per message."""
    console_share: float
    """Share of one processor."""
    visits: dict[str, Any] | None


class Bench:
    """The turns of one run."""

    def __init__(self, made: Watched, senders: Helper, visitors: Helper) -> None:
        self._made, self._senders, self._visitors = made, senders, visitors

    def most(self) -> float:
        """Return the maximum rate in messages a second, without console users."""
        os.kill(self._made.console.pid, SIGSTOP)
        for seconds in (WARM_UP_S, MOST_S):
            self._senders.begin(seconds, 0)
            found = self._senders.result()
        return float(found["messages"]) / float(found["seconds"])

    def turn(self, seconds: float, rate: float, is_watched: bool) -> Turn:
        """One while with or without people at the console and scrapes."""
        console, broker = self._made.console.pid, self._made.broker.pid
        os.kill(console, SIGCONT if is_watched else SIGSTOP)
        Event().wait(SETTLE_S)
        before_s, console_before_s = cpu_seconds(broker), cpu_seconds(console)
        self._senders.begin(seconds, rate)
        if is_watched:
            self._visitors.begin(seconds)
        sends = self._senders.result()
        used_s, console_s = cpu_seconds(broker) - before_s, cpu_seconds(console) - console_before_s
        visits = self._visitors.result() if is_watched else None
        return Turn(
            sends, used_s * 1e6 / sends["messages"], console_s / float(sends["seconds"]), visits
        )


def measure(bench: Bench, options: argparse.Namespace) -> None:
    """All rounds, a line for each; then the table."""
    most = bench.most()
    rate = options.rate or most / 2
    print(f"the most: {most:,.0f} messages/s; sends at {rate:,.0f}/s", flush=True)
    bench.turn(options.warm_up, rate, True)  # every page once
    rounds: list[tuple[Turn, Turn]] = []
    for number in range(options.rounds):
        order = (False, True) if number % 2 else (True, False)
        found = {is_watched: bench.turn(options.seconds, rate, is_watched) for is_watched in order}
        without, with_it = found[False], found[True]
        rounds.append((without, with_it))
        print(
            f"round {number + 1}: broker {without.broker_us:.2f} and {with_it.broker_us:.2f}"
            f" µs/message, p99 {without.sends['p99_ms']:.2f} and {with_it.sends['p99_ms']:.2f} ms,"
            f" console {with_it.console_share:.1%} of a processor",
            flush=True,
        )
    print(table(rounds))


def table(rounds: Sequence[tuple[Turn, Turn]]) -> str:
    """Medians of the rounds."""
    lines = [
        "",
        "| | no visitors | ten visitors, scrapes | ratio | goal |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    rows: list[tuple[str, Callable[[Turn], float], str]] = [
        ("broker CPU, µs a message", lambda turn: turn.broker_us, f"{CPU_GOAL:.2f}"),
        ("send p99, ms", lambda turn: turn.sends["p99_ms"], f"{P99_GOAL:.2f}"),
        ("send p50, ms", lambda turn: turn.sends["p50_ms"], ""),
    ]
    for name, of, goal in rows:
        pairs = [(of(without), of(with_it)) for without, with_it in rounds]
        ratio = median(after / before for before, after in pairs)
        before, after = (median(column) for column in zip(*pairs, strict=True))
        lines.append(f"| {name} | {before:.2f} | {after:.2f} | {ratio:.3f} | {goal} |")
    watched_turns = [turn for _, turn in rounds]
    visits = [turn.visits for turn in watched_turns if turn.visits is not None]
    seconds = [float(turn.sends["seconds"]) for turn in watched_turns]
    pages_ms = sorted(taken for each in visits for taken in each["taken_ms"])
    scrapes_ms = [taken for each in visits for taken in each["scrapes_ms"]]
    failures = [failure for each in visits for failure in each["failures"]]
    pages_a_second = sum(each["pages"] for each in visits) / sum(seconds)
    client = median(each["cpu_s"] / s for each, s in zip(visits, seconds, strict=True))
    console = median(turn.console_share for turn in watched_turns)
    page_p99 = pages_ms[len(pages_ms) * 99 // 100] if pages_ms else 0.0
    return "\n".join(
        [
            *lines,
            "",
            f"{len(rounds)} rounds; the console {console:.1%} of a processor, the visitors'"
            f" client {client:.1%}; {pages_a_second:.1f} pages a second, median"
            f" {median(pages_ms or [0]):.0f} ms, p99 {page_p99:.0f} ms, {len(failures)} failed;"
            f" {len(scrapes_ms)} scrapes, median {median(scrapes_ms or [0]):.0f} ms.",
            *(f"failed: {each}" for each in failures[:10]),
        ]
    )


def run_senders(address: str) -> None:
    """Send in a separate process: one line `SECONDS RATE` for each period."""
    senders = Senders(address)
    print("{}", flush=True)
    for line in sys.stdin:
        seconds, rate = map(float, line.split())
        print(json.dumps(senders.run(seconds, rate)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.console_load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=40.0, help="of a turn; two a round")
    parser.add_argument("--warm-up", type=float, default=40.0, help="seconds, with visitors")
    parser.add_argument("--rate", type=float, default=0.0, help="sends a second; 0: half the most")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="troupemq-console-load-") as folder, ExitStack() as stack:
        made = stack.enter_context(watched(Path(folder)))
        senders = Helper(__spec__.name, "--senders", made.broker.address)
        stack.callback(senders.close)
        ports = str(made.console_port), str(made.metrics_port)
        visitors = Helper(console_sessions.__name__, *ports, made.broker.address, made.password)
        stack.callback(visitors.close)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
        measure(Bench(made, senders, visitors), options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--senders"]:
        run_senders(*sys.argv[2:])
    else:
        main()
