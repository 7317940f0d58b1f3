"""Ten recorded visits to the console, replayed by one light HTTP client.

`console_sessions.json` has the requests of browsers, recorded by tests/bench/console_walks.py:
pages, files and repeated requests of htmx, each with its second. `{broker}` and `{csrf}` stand for
values that differ each time. A visitor has one connection and a cookie. It requests a file of
/static again after FILE_S, as a browser does. A finished visit starts again. `python -m
tests.bench.console_sessions CONSOLE-PORT METRICS-PORT BROKER-ADDRESS PASSWORD` logs ten visitors in
and prints a line. For each line with a number of seconds that it reads, it plays for that time,
scrapes the metrics meanwhile, and prints the answers as JSON.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from re import compile as compile_pattern
from threading import Event, Thread
from time import perf_counter, process_time
from urllib.parse import quote, urlencode

RECORDED = Path(__file__).with_suffix(".json")
VISITS = 10
BROKER, CSRF = "{broker}", "{csrf}"
FILE_S = 300.0
"""Time for which browsers cache a file, as the console's header says."""

SCRAPE_S = 15.0
TIMEOUT_S = 30.0
_TOKEN = compile_pattern(rb'name="csrf" value="([^"]+)"')


@dataclass(frozen=True)
class Asked:
    """One request of a visit."""

    at_s: float
    """Since the visit's begin."""
    path: str
    form: str | None = None
    """Form to post, or None for a GET."""


@dataclass(frozen=True)
class Visit:
    """Requests of one browser visit."""

    name: str
    seconds: float
    requests: Sequence[Asked]


def load() -> list[Visit]:
    """The recorded visits."""
    found = json.loads(RECORDED.read_text())
    return [
        Visit(each["name"], each["seconds"], [Asked(*request) for request in each["requests"]])
        for each in found
    ]


def save(visits: Sequence[Visit]) -> None:
    """A line a request, that changes can be read."""
    lines = []
    for visit in visits:
        requests = [
            [each.at_s, each.path, *([] if each.form is None else [each.form])]
            for each in visit.requests
        ]
        rows = ",\n".join(f"  {json.dumps(each)}" for each in requests)
        head = f'{{"name": {json.dumps(visit.name)}, "seconds": {visit.seconds:g}, "requests": ['
        lines.append(f"{head}\n{rows}\n]}}")
    RECORDED.write_text("[\n" + ",\n".join(lines) + "\n]\n")


@dataclass
class Answered:
    """Results of a period."""

    pages: int = 0
    files: int = 0
    failures: list[str] = field(default_factory=list)
    taken_ms: list[float] = field(default_factory=list)
    """Latency of each page."""

    def add(self, other: "Answered") -> None:
        self.pages += other.pages
        self.files += other.files
        self.failures += other.failures
        self.taken_ms += other.taken_ms


class Visitor:
    """One browser: goes on with its visit where it stopped. Owned by one thread at a time."""

    def __init__(self, visit: Visit, port: int, broker: str, password: str) -> None:
        self._visit, self._port = visit, port
        self._broker, self._password = broker, password
        self._line = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._cookie = self._csrf = ""
        self._files: dict[str, float] = {}
        self._next, self._visited_s = 0, 0.0

    def log_in(self) -> None:
        """Raises ConnectionError if it may not."""
        form = urlencode({"name": "admin", "password": self._password, "next": "/"})
        status, head, _ = self._answer("/login", form)
        cookie = head.get("set-cookie", "")
        if status != 303 or not cookie:
            raise ConnectionError(f"the login is answered {status}")
        self._cookie = cookie.partition(";")[0]

    def play(self, seconds: float) -> Answered:
        """Asks for what is due in the next seconds."""
        found, began_s, begun_at_s = Answered(), perf_counter(), self._visited_s
        pause = Event()
        while True:
            request = self._visit.requests[self._next]
            due_s = request.at_s - begun_at_s
            if due_s > seconds:
                break
            pause.wait(max(0.0, began_s + due_s - perf_counter()))
            self._ask(request, found)
            self._next += 1
            if self._next == len(self._visit.requests):
                self._next, begun_at_s = 0, begun_at_s - self._visit.seconds
        self._visited_s = begun_at_s + seconds
        pause.wait(max(0.0, began_s + seconds - perf_counter()))
        return found

    def _ask(self, request: Asked, found: Answered) -> None:
        is_file = request.path.startswith("/static/")
        began_s = perf_counter()
        if is_file and began_s - self._files.get(request.path, -FILE_S) < FILE_S:
            return
        path = request.path.replace(BROKER, quote(self._broker, safe=""))
        form = request.form and request.form.replace(CSRF, quote(self._csrf, safe=""))
        try:
            status, _, body = self._answer(path, form)
        except (OSError, HTTPException) as error:
            found.failures.append(f"{path}: {error!r}")
            return
        if status != 200:
            found.failures.append(f"{path}: {status}")
        elif is_file:
            self._files[request.path] = began_s
            found.files += 1
        else:
            found.pages += 1
            found.taken_ms.append((perf_counter() - began_s) * 1000)
            if token := _TOKEN.search(body):
                self._csrf = token[1].decode()

    def _answer(self, path: str, form: str | None) -> tuple[int, dict[str, str], bytes]:
        try:
            return self._answer_once(path, form)
        except (ConnectionError, HTTPException):  # the server has closed it meanwhile
            self._line.close()
            return self._answer_once(path, form)

    def _answer_once(self, path: str, form: str | None) -> tuple[int, dict[str, str], bytes]:
        headers = {"Cookie": self._cookie, "Accept": "text/html"}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        self._line.request("GET" if form is None else "POST", path, form, headers)
        response = self._line.getresponse()
        body = response.read()
        head = {name.lower(): value for name, value in response.getheaders()}
        return response.status, head, body


def scrape(port: int, seconds: float, found: list[float]) -> None:
    """Scrape as Prometheus does, every SCRAPE_S, the first after a third of it; return the ms of
    each.
    """
    began_s, due_s = perf_counter(), SCRAPE_S / 3
    while due_s < seconds:
        Event().wait(max(0.0, began_s + due_s - perf_counter()))
        asked_s = perf_counter()
        line = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        line.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        response = line.getresponse()
        body = response.read()
        line.close()
        if response.status != 200 or not body:
            raise ConnectionError(f"a scrape is answered {response.status}")
        found.append((perf_counter() - asked_s) * 1000)
        due_s += SCRAPE_S


def play(visitors: Sequence[Visitor], metrics_port: int, seconds: float) -> dict[str, object]:
    """All of them at once, each on a thread, and the scrapes."""
    each_found: list[Answered] = []
    scrapes_ms: list[float] = []
    used_s = process_time()
    threads = [
        Thread(target=lambda each=each: each_found.append(each.play(seconds))) for each in visitors
    ]
    threads.append(Thread(target=scrape, args=(metrics_port, seconds, scrapes_ms)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Answered()
    for one in each_found:
        found.add(one)
    return {**asdict(found), "scrapes_ms": scrapes_ms, "cpu_s": process_time() - used_s}


def main() -> None:
    port, metrics_port, broker, password = sys.argv[1:]
    visitors = [Visitor(visit, int(port), broker, password) for visit in load()]
    for visitor in visitors:
        visitor.log_in()
    print(json.dumps({"visitors": len(visitors)}), flush=True)
    for line in sys.stdin:
        print(json.dumps(play(visitors, int(metrics_port), float(line))), flush=True)


if __name__ == "__main__":
    main()
