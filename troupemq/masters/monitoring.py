"""Metrics and health of several masters at one port.

    /metrics, /metrics/exporter    metrics of every master, each line with its node_id;
                                   troupemq_master_up is 0 without an answer within ASK_S
    /health/live, /health/ready    checks of every master, with its name as prefix

This is a process beside the masters, also started by the supervisor. It reads their ports from
their ready files for each request, because a restart may change them. It requests all masters in
parallel.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from json import load, loads
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic, perf_counter

from actors.config import BrokerConfig
from actors.metrics.metrics_renderer import FRESH_S
from actors.metrics.metrics_server import page_server
from actors.metrics.page import CONTENT_TYPE, MetricsPage, Packed, labels
from actors.metrics.page_server import BROKER_PATH, EXPORTER_PATH, HttpRequest, Page, PageAnswer
from actors.network.bind_address import reached_at
from storage.errors import StoreError, reason_of
from troupemq.daemon import Serving
from troupemq.health.checks import RECOVERS, HealthCheck, checks_answer

ASK_S = 4.0
"""Timeout for metrics; Prometheus waits 10 s by default. Probes wait 1 s to 3 s (HEALTH_S)."""
HEALTH_S = 2.0
UP = "troupemq_master_up"
_HELP = "# HELP "
_NODE = 'node_id="'


@dataclass(frozen=True)
class MonitoredMaster:
    name: str
    ready_file: str

    def ports(self) -> Mapping[str, int]:
        """Return its ports by name; empty while it does not serve."""
        try:
            with open(self.ready_file, encoding="utf-8") as file:
                found: dict[str, int] = load(file)
            os.kill(found["pid"], 0)
        except (OSError, ValueError, KeyError):  # not serving, or killed before removing the file
            return {}
        return found


def masters_of(plan: str) -> list[MonitoredMaster]:
    """Return the masters of the supervisor's plan file. Raises StoreError."""
    try:
        with open(plan, encoding="utf-8") as file:
            found = load(file)
        return [MonitoredMaster(each["name"], each["ready_file"]) for each in found["instances"]]
    except OSError as error:
        raise StoreError(f"cannot read {plan}: {reason_of(error)}.") from None
    except (ValueError, KeyError, TypeError):
        raise StoreError(f"{plan} is not a plan of several masters.") from None


# --- requests


def asked(host: str, port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
    """Return a master's status and body for a path. Raises OSError, HTTPException."""
    connection = HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class MasterSaid:
    body: bytes | None
    """None without an answer in time."""
    took_s: float


class AllAsked:
    """Parallel requests to all masters, with at most one request per master and path."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owing: set[tuple[str, str]] = set()

    def ask(
        self, ports: Mapping[str, int], host: str, path: str, timeout_s: float
    ) -> Mapping[str, MasterSaid]:
        """Request a path of all masters; return the results by name within `timeout_s`."""
        said: SimpleQueue[tuple[str, MasterSaid]] = SimpleQueue()
        until_s, begun = monotonic() + timeout_s, 0
        for name, port in ports.items():
            with self._lock:
                if (name, path) in self._owing:
                    continue
                self._owing.add((name, path))
            work = partial(self._ask_one, name, host, port, path, timeout_s, said.put)
            Thread(target=work, name=f"asks {name}", daemon=True).start()
            begun += 1
        found = dict.fromkeys(ports, MasterSaid(None, timeout_s))
        for _ in range(begun):
            try:
                name, one = said.get(timeout=max(0.0, until_s - monotonic()))
            except Empty:
                break
            found[name] = one
        return found

    def _ask_one(
        self,
        name: str,
        host: str,
        port: int,
        path: str,
        timeout_s: float,
        tell: Callable[[tuple[str, MasterSaid]], None],
    ) -> None:
        began_s = perf_counter()
        body: bytes | None = None
        try:
            _, body = asked(host, port, path, timeout_s)
        except (OSError, HTTPException):
            body = None
        finally:
            with self._lock:
                self._owing.discard((name, path))
        tell((name, MasterSaid(body, perf_counter() - began_s)))


# --- metrics


def merged(pages: Mapping[str, str]) -> list[str]:
    """Merge metrics pages, keyed by master: each family once, with the lines of all masters.

    Lines without a node_id get one.
    """
    families: dict[str, list[str]] = {}
    for node, text in pages.items():
        for block in f"\n{text}".split(f"\n{_HELP}")[1:]:
            first, _, rest = block.partition("\n")
            kind, _, samples = rest.partition("\n")
            if samples and not samples.endswith("\n"):
                samples += "\n"
            if samples and _NODE not in samples.partition("\n")[0]:
                samples = _with_node(samples, labels({"node_id": node}))
            family = families.setdefault(first.partition(" ")[0], [f"{_HELP}{first}\n{kind}\n"])
            family.append(samples)
    return [part for family in families.values() for part in family if part]


def _with_node(samples: str, text: str) -> str:
    lines = []
    for line in samples.splitlines(keepends=True):
        name, brace, rest = line.partition("{")
        if brace:
            comma = "" if rest.startswith("}") else ","
            lines.append(f"{name}{{{text}{comma}{rest}")
        else:
            name, _, value = line.partition(" ")
            lines.append(f"{name}{{{text}}} {value}")
    return "".join(lines)


class Monitoring:
    def __init__(self, masters: Sequence[MonitoredMaster], config: BrokerConfig) -> None:
        self._masters, self._config = masters, config
        self._all = AllAsked()
        self._locks = {path: Lock() for path in (BROKER_PATH, EXPORTER_PATH)}
        self._made: dict[str, tuple[float, PageAnswer]] = {}

    def pages(self) -> Mapping[str, Page]:
        """Return the pages by path, with metrics if the masters serve them."""
        found: dict[str, Page] = {
            "/health/live": lambda _: checks_answer(self._health("live")),
            "/health/ready": lambda _: checks_answer(self._health("ready")),
        }
        if self._config.serves_metrics:
            found |= dict.fromkeys(self._locks, self._metrics)
        return found

    def _metrics(self, request: HttpRequest) -> PageAnswer:
        """Return the metrics page, at most FRESH_S old; requests for one path are serialized."""
        query = "?collect=client" if request.query.get("collect") == "client" else ""
        target = request.path + query
        with self._locks[request.path]:
            made_s, made = self._made.get(target, (0.0, None))
            if made is None or monotonic() - made_s >= FRESH_S:
                made = PageAnswer(HTTPStatus.OK, self._exposition(target), CONTENT_TYPE)
                self._made[target] = monotonic(), made
            return made

    def _exposition(self, target: str) -> Packed:
        ports = {
            each.name: found["metrics"]
            for each in self._masters
            if "metrics" in (found := each.ports())
        }
        said = self._all.ask(ports, "127.0.0.1", target, ASK_S)
        pages = {name: one.body.decode() for name, one in said.items() if one.body is not None}
        own = MetricsPage({"cluster": self._config.broker_cluster_name, "node_type": "broker"})
        for part in merged(pages):
            own.add_text(part)
        names = [(labels({"node_id": each.name}), each.name) for each in self._masters]
        own.gauge(
            UP, "Whether a master returned its metrics", [(t, int(n in pages)) for t, n in names]
        )
        own.gauge(
            "troupemq_master_scrape_seconds",
            "Duration of the request to a master",
            [(text, said[name].took_s) for text, name in names if name in said],
        )
        return own.packed()

    def _health(self, what: str) -> list[HealthCheck]:
        """Return the checks of all masters; one that is starting is live, but not ready."""
        ports = {each.name: each.ports() for each in self._masters}
        asks = {name: found["health"] for name, found in ports.items() if "health" in found}
        said = self._all.ask(asks, self._health_host, f"/health/{what}", HEALTH_S)
        checks: list[HealthCheck] = []
        for name, found in ports.items():
            if not found:
                why = "" if what == "live" else RECOVERS
                checks.append(HealthCheck(f"{name}: serving", what == "live", why))
            elif name not in said:
                checks.append(HealthCheck(f"{name}: serving", True))
            else:
                checks += _checks_of(name, said[name].body)
        return checks

    @property
    def _health_host(self) -> str:
        config = self._config
        if config.serves_metrics and config.metrics_port == config.health_port:
            return "127.0.0.1"
        return reached_at(config.bind_address)


def _checks_of(name: str, body: bytes | None) -> list[HealthCheck]:
    why = f"no answer within {HEALTH_S:.0f} s"
    if body is not None:
        try:
            return [
                HealthCheck(f"{name}: {each['check']}", bool(each["ok"]), str(each["why"]))
                for each in loads(body)["checks"]
            ]
        except (ValueError, KeyError, TypeError, RecursionError):
            why = "its answer is not understood"
    return [HealthCheck(f"{name}: serving", False, why)]


def start_monitoring(plan: str, config: BrokerConfig) -> Serving:
    """Start the monitoring server. Raises PortTaken, StoreError."""
    server = page_server(config, config.monitoring_port, "monitoringPort")
    server.add(Monitoring(masters_of(plan), config).pages())

    def stop(_: float) -> bool:
        server.close()
        return True

    return Serving({"monitoring": server.port}, stop)
