"""Attempts on the console and on metrics at full counts, against processes: A45, A47, A48.

Only in `make trials`. How long a neighbour of the broker waits is told, and not a test: attackers,
console and broker share the processors of one machine.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from socket import create_connection, socket
from time import perf_counter
from urllib.parse import urlencode

import pytest

from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.headers.client import QueueHeader
from tests.bench.console_load import ORDERS, Watched, watched
from tests.bench.process_figures import cpu_seconds, memory
from tests.compat.patience import wait_until
from tests.security.test_attempts_in_full import many_files
from tests.support.brokers import send_command
from tests.support.metrics import samples
from tests.support.sockets import Line

__all__ = ["many_files"]

pytestmark = pytest.mark.alone

WAIT_S = 120.0
GUESSES, GUESSERS = 10_000, 16
STREAMS = 1_000
TOPICS, SERIES_MAX, AT_A_TIME = 2_000, 500, 50
MORE_KIB = 150 << 10
"""Memory that an attempt may cost the console: two concurrent passwords take 64 MiB of it."""

Tell = Callable[[str], None]


@pytest.fixture(autouse=True)
def cheap_passwords() -> None:
    """Keep the passwords expensive: the console is a separate process."""


class Attacked:
    """Console with a logged-in user, and a neighbour client of its broker."""

    def __init__(self, made: Watched, neighbour: Line) -> None:
        self.made, self._neighbour = made, neighbour
        form = {"name": "admin", "password": made.password, "next": "/"}
        status, head, _ = self.ask("POST", "/login", urlencode(form))
        assert status == 303
        self.cookie = head["set-cookie"].partition(";")[0]

    def ask(
        self, method: str, path: str, form: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        line = HTTPConnection("127.0.0.1", self.made.console_port, timeout=WAIT_S)
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            line.request(method, path, form, headers)
            answer = line.getresponse()
            head = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, head, answer.read().decode(errors="replace")
        finally:
            line.close()

    def connect(self, stack: ExitStack, port: int | None = None) -> socket:
        where = "127.0.0.1", port or self.made.console_port
        return stack.enter_context(create_connection(where, WAIT_S))

    def p99_ms(self) -> float:
        """Return the p99 of another client's requests."""
        waits = []
        for _ in range(400):
            began_s = perf_counter()
            header = QueueHeader(ORDERS, 0).encode()
            assert self._neighbour.ask(RemotingCommand(Code.GET_MAX_OFFSET, header)).code == 0
            waits.append((perf_counter() - began_s) * 1000)
        return sorted(waits)[396]

    def console_kib(self) -> int:
        return memory(self.made.console.pid).anonymous_kib

    def is_served(self) -> bool:
        with suppress(ConnectionError):
            return self.ask("GET", "/alerts", Cookie=self.cookie)[0] == 200
        return False


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attacked]:
    more = {"metricsOtelCardinalityLimit": str(SERIES_MAX)}
    with watched(tmp_path, more) as made, Line.to(int(made.broker.address.split(":")[1])) as line:
        yield Attacked(made, line)
        assert made.console.exit_code() is None and made.broker.child.exit_code() is None


def status_of(answer: bytes) -> str:
    return answer.split(b" ")[1].decode() if answer.startswith(b"HTTP/1.1 ") else "closed"


def end_of(peer: socket) -> bytes:
    found = b""
    with suppress(ConnectionError):
        while data := peer.recv(65_536):
            found += data
    return found


@pytest.mark.slow(seconds=90)
@pytest.mark.trial(short=0, long=1, every=4)
def test_a45_ten_thousand_password_guesses_are_limited(
    seed: int, attacked: Attacked, tell: Tell
) -> None:
    before_kib, before_s = attacked.console_kib(), cpu_seconds(attacked.made.console.pid)
    began_s = perf_counter()

    def guess(number: int) -> int:
        name = "admin" if number % 2 else f"nobody-{seed}-{number}"
        form = urlencode({"name": name, "password": f"guess {number}", "next": "/"})
        return attacked.ask("POST", "/login", form)[0]

    with ThreadPoolExecutor(GUESSERS) as pool:
        statuses = Counter(pool.map(guess, range(GUESSES)))
    took_s = perf_counter() - began_s
    cpu_s = cpu_seconds(attacked.made.console.pid) - before_s
    more_kib = attacked.console_kib() - before_kib
    assert statuses.keys() == {401, 429} and statuses[401] < 20
    form = urlencode({"name": "admin", "password": attacked.made.password, "next": "/"})
    assert attacked.ask("POST", "/login", form)[0] == 429
    assert attacked.is_served(), "who is in already"
    tell(
        f"A45: {GUESSES:,} passwords in {took_s:.0f} s, {statuses[401]} of them looked at;"
        f" console {cpu_s:.0f} s of processor, memory + {more_kib >> 10} MiB"
    )
    assert more_kib < MORE_KIB


@pytest.mark.slow(seconds=60)
@pytest.mark.trial(short=0, long=1, every=4)
def test_a47_a_thousand_hanging_requests_are_limited(
    seed: int, attacked: Attacked, tell: Tell
) -> None:
    before_kib, quiet_ms = attacked.console_kib(), attacked.p99_ms()
    begun = (b"", b"GET /tail?topic=Orders HTTP/1.1\r\nHost: loc", b"POST /login HTTP/1.1\r\n")
    ports = attacked.made.console_port, attacked.made.metrics_port
    with ExitStack() as stack:
        held = [attacked.connect(stack, ports[number % 2]) for number in range(2 * STREAMS)]
        for number, peer in enumerate(held):
            with suppress(ConnectionError):  # the port of metrics has 32, and closes the others
                peer.sendall(begun[(number + seed) % len(begun)])
        attacked_ms = attacked.p99_ms()
        more_kib = attacked.console_kib() - before_kib
        began_s = perf_counter()
        answers = Counter(status_of(end_of(peer)) for peer in held)
        cut_s = perf_counter() - began_s
    wait_until(attacked.is_served, "the console serves again")
    line = HTTPConnection("127.0.0.1", attacked.made.metrics_port, timeout=WAIT_S)
    line.request("GET", "/metrics")
    assert line.getresponse().status == 200
    line.close()
    tell(
        f"A47: 2 × {STREAMS:,} that hang are cut within {cut_s:.0f} s: {dict(answers)}; p99 of"
        f" another at the broker {quiet_ms:.2f} ms before, {attacked_ms:.2f} ms under it; console"
        f" + {more_kib >> 10} MiB"
    )
    assert answers.keys() <= {"closed", "400", "503", "408", "431"}
    assert more_kib < MORE_KIB


@pytest.mark.slow(seconds=60)
@pytest.mark.trial(short=0, long=1, every=4)
def test_a47_a_thousand_topic_followers_are_limited(
    seed: int, attacked: Attacked, tell: Tell
) -> None:
    """All ask at once for what a page asks for every two seconds."""
    before_kib, quiet_ms = attacked.console_kib(), attacked.p99_ms()
    request = (
        f"GET /tail?topic={ORDERS}&seed={seed} HTTP/1.1\r\nHost: localhost\r\n"
        f"Cookie: {attacked.cookie}\r\nConnection: close\r\n\r\n"
    ).encode()
    began_s = perf_counter()
    with ExitStack() as stack:
        held = [attacked.connect(stack) for _ in range(STREAMS)]
        for peer in held:
            with suppress(ConnectionError):
                peer.sendall(request)
        attacked_ms = attacked.p99_ms()
        answers = Counter(status_of(end_of(peer)) for peer in held)
        took_s = perf_counter() - began_s
    wait_until(attacked.is_served, "the console serves again")
    more_kib = attacked.console_kib() - before_kib
    tell(
        f"A47: {STREAMS:,} followers at once: {dict(answers)} in {took_s:.0f} s; p99 of another at"
        f" the broker {quiet_ms:.2f} ms before, {attacked_ms:.2f} ms under it; console"
        f" + {more_kib >> 10} MiB"
    )
    assert answers.keys() <= {"200", "503", "closed"}
    assert more_kib < MORE_KIB


@pytest.mark.slow(seconds=90)
@pytest.mark.trial(short=0, long=1, every=4)
def test_a48_thousands_of_invented_topics_keep_pages_short(
    seed: int, attacked: Attacked, tell: Tell
) -> None:
    with Line.to(int(attacked.made.broker.address.split(":")[1])) as line:
        for begin in range(0, TOPICS, AT_A_TIME):
            names = [f"made-up-{seed}-{begin + number}" for number in range(AT_A_TIME)]
            line.send(*(send_command(b"x", topic=each, queue_id=0) for each in names))
            assert {answer.code for answer in line.receive(len(names))} == {0}
    found, took_s = {}, []
    for path in ("/metrics", "/metrics/exporter"):
        began_s = perf_counter()
        page = HTTPConnection("127.0.0.1", attacked.made.metrics_port, timeout=WAIT_S)
        page.request("GET", path)
        text = page.getresponse().read().decode()
        page.close()
        took_s.append(perf_counter() - began_s)
        found[path] = samples(text)
        own = {name: len(rows) for name, rows in found[path].items() if "topic" in rows[0][0]}
        # a histogram has eight lines for each series
        assert max(count // (8 if "bucket" in name else 1) for name, count in own.items()) <= (
            SERIES_MAX
        ), own
    sent = found["/metrics"]["rocketmq_messages_in_total"]
    assert sum(count for labels, count in sent) >= TOPICS
    assert sum(labels["topic"] == "other" for labels, _ in sent) == 1
    assert attacked.is_served()
    tell(
        f"A48: {TOPICS:,} topics made up, {SERIES_MAX:,} of them shown; scrapes took"
        f" {' and '.join(f'{each:.1f} s' for each in took_s)}"
    )
