"""The broker benchmark's loads, run by the official Java client, whose clients have threads of
their own each; so those with many connections are run by connections.py."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from protocol.signature import Credentials
from tests.bench.process_figures import (
    Memory,
    cpu_seconds,
    failures_told,
    last_words,
    machine_cpu_seconds,
    memory,
    scheduled_us,
)
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route
from tests.compat.servers import OPENS, ROOT, Broker
from tests.compat.toolchain import Java
from troupemq.client.admin import Admin

CLIENT_JVM = ["-server", "-Xms1g", "-Xmx1g"]
IDLE_CLIENTS = 10_000
LARGE_BODY_BYTES = 64 << 10
LARGE_MOST = (5 << 30) // LARGE_BODY_BYTES
"""Number of large messages, warm-up included: 5 GiB on the disk."""
MANY = "many"
"""The topics of the broker `topics` (tests/bench/brokers.py) are called many-0, many-1, …"""
TLS = "tls"
"""The broker to which clients come with TLS."""
COLD_TOPIC = "BenchmarkTest"
"""That of the messages of the broker `large`."""


@dataclass(frozen=True)
class Plan:
    """Common settings of all loads of a run."""

    java: Java
    scratch: Path
    queues: int
    body_bytes: int
    warm_up_ms: int
    measure_ms: int
    backlog: int


@dataclass(frozen=True)
class Goal:
    """Ours ÷ official on the Python that is recommended: the least rate, the greatest CPU."""

    rate: float = 1.0
    cpu: float = 0.9


P99_MAX = 1.0
"""Goal for the ratio of p99, in every load."""


@dataclass(frozen=True)
class Load:
    """A load with its client and broker."""

    title: str
    arguments: Mapping[str, object]
    """Arguments of the client (Load.java, or connections.py)."""
    broker: str = "async"
    """Broker of the load, by its name in tests/bench/brokers.py."""
    backlog: Mapping[str, object] | None = None
    """Messages stored before the load starts; None: there is no backlog."""
    share: int = 1
    """One message of so many of the backlog is consumed."""
    idle_clients: int = 0
    own_topic: bool = True
    connections: bool = False
    """Run by connections.py."""
    is_new: bool = True
    goal: Goal = field(default_factory=Goal)


@dataclass(frozen=True)
class Figures:
    """Figures of one run of a load; latencies are None without answers to wait for."""

    messages: int
    failures: int
    seconds: float
    broker_cpu_s: float
    slave_cpu_s: float
    client_cpu_s: float
    machine_cpu_s: float
    broker_memory: Memory
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    others: int | None
    """Messages that were consumed, or sent, at the same time and are not those counted."""
    failed_with: str = ""
    """Text of the first failure at the client, warm-up included."""

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def broker_us(self) -> float:
        """Broker CPU for each message."""
        return self.broker_cpu_s / max(self.messages, 1) * 1e6

    @property
    def slave_us(self) -> float:
        """The slave's CPU for each message; 0 without one."""
        return self.slave_cpu_s / max(self.messages, 1) * 1e6

    @property
    def client_us(self) -> float:
        return self.client_cpu_s / max(self.messages, 1) * 1e6

    @property
    def elsewhere(self) -> float:
        """Share of the processors that others used; where it is high the figures say little."""
        known = self.broker_cpu_s + self.slave_cpu_s + self.client_cpu_s
        others = self.machine_cpu_s - known
        return max(others, 0) / self.seconds / (os.cpu_count() or 1)


class Probe(Protocol):
    """Observer of the broker during the measured time."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


def _send(threads: int, **more: object) -> dict[str, object]:
    return {"load": "send", "threads": threads, **more}


_CONSUME = {"load": "consume"}
_TAGGED = {"keys": 1, "tags": "A,B,C"}
_END_TO_END = _send(16, rate=5000, group="at-once", counts="listener", bodyBytes=256, **_TAGGED)
_WARMED = 200_000
"""Sends before the warm-up: until the JVM has compiled it a client's TLS takes 30 µs a record."""
_MANY = _send(64, first=_WARMED)
_IN_CALLBACKS = {"load": "callbacks", "threads": 16, "inFlight": 256, "first": _WARMED}

LOADS = {
    "send": Load("send, 64 threads", _MANY, is_new=False, goal=Goal(1.5, 0.42)),
    "one": Load("send, 1 thread", _send(1), is_new=False, goal=Goal(1.1, 0.6)),
    "callbacks": Load(
        "send, 16 threads with callbacks, 256 in flight",
        _IN_CALLBACKS,
        is_new=False,
        goal=Goal(1.5, 0.42),
    ),
    "sync": Load(
        "send, 64 threads, SYNC_FLUSH", _send(64), "sync", is_new=False, goal=Goal(1.5, 0.42)
    ),
    "sync-one": Load(
        "send, 1 thread, SYNC_FLUSH", _send(1), "sync", is_new=False, goal=Goal(2.0, 0.5)
    ),
    "replica": Load(
        "send, 64 threads, SYNC_MASTER", _send(64), "replica", is_new=False, goal=Goal(1.4, 0.6)
    ),
    "replica-one": Load(
        "send, 1 thread, SYNC_MASTER", _send(1), "replica", is_new=False, goal=Goal(1.0, 0.9)
    ),
    "send-acl": Load("send, 64 threads, access control", _MANY, "acl", goal=Goal(1.4, 0.5)),
    "send-tls": Load("send, 64 threads, TLS", _MANY, TLS, goal=Goal(1.4, 0.5)),
    "callbacks-tls": Load(
        "send, 16 threads with callbacks, 256 in flight, TLS",
        _IN_CALLBACKS,
        TLS,
        goal=Goal(1.4, 0.5),
    ),
    "consume-tls": Load("push-consume a backlog, TLS", _CONSUME, TLS, backlog={}),
    "consume": Load(
        "push-consume a backlog", _CONSUME, backlog={}, is_new=False, goal=Goal(1.1, 0.6)
    ),
    "both": Load(
        "send, 64 threads, 256 B, keys and tags, and consume at once",
        _send(64, bodyBytes=256, group="at-once", **_TAGGED),
        goal=Goal(1.6, 0.45),
    ),
    "1k": Load("send, 64 threads, 1 KiB", _send(64, bodyBytes=1024)),
    "64k": Load(
        "send, 16 threads, 64 KiB",
        _send(16, bodyBytes=LARGE_BODY_BYTES, most=LARGE_MOST, warmUpMs=1000),
    ),
    "batches": Load(
        "batches of 32, 16 threads",
        {"load": "batches", "threads": 16, "batch": 32},
        goal=Goal(1.1, 0.75),
    ),
    "filtered": Load(
        "push-consume one tag of three",
        {**_CONSUME, "expression": "A"},
        backlog=_TAGGED,
        share=3,
        goal=Goal(1.0, 0.8),
    ),
    "orderly": Load(
        "push-consume a backlog, orderly",
        {**_CONSUME, "orderly": 1},
        backlog={},
        goal=Goal(1.0, 0.7),
    ),
    "delayed": Load(
        "delayed by 1 s, 16 threads; at the listener, from when it is due",
        _send(16, delayLevel=1, group="at-once", counts="listener"),
        goal=Goal(1.1, 0.65),
    ),
    "transactions": Load(
        "transactions, 64 threads", {"load": "transactions", "threads": 64}, goal=Goal(1.3, 0.7)
    ),
    "end-to-end": Load("5,000/s, from send to listener", _END_TO_END),
    "idle": Load(
        f"send, 64 threads, beside {IDLE_CLIENTS:,} idle clients",
        _send(64),
        idle_clients=IDLE_CLIENTS,
    ),
    **{
        f"connections-{number}": Load(
            f"send, {number:,} connections, 64 in flight",
            {"connections": number, "inFlight": 64},
            connections=True,
            own_topic=False,
        )
        for number in (1, 100, 1000)
    },
    **{
        f"topics-{number}": Load(
            f"send, 64 threads, {number:,} topics of one queue",
            _send(64, topics=number, topic=MANY),
            "topics",
            own_topic=False,
        )
        for number in (1, 100, 10_000)
    },
    "large-send": Load("send, 64 threads, large store", _send(64), "large"),
    "large-cold": Load(
        "a cold backlog; 5,000/s from send to listener beside it",
        {**_END_TO_END, "coldGroup": "cold", "coldTopic": COLD_TOPIC},
        "large",
        goal=Goal(0.8, 1.1),
    ),
}

_numbers = count(1)


def run(
    load: Load,
    broker: Broker,
    plan: Plan,
    slave: Broker | None = None,
    probe: Probe | None = None,
) -> Figures:
    """Runs `load` once; RuntimeError with the client's words if it fails."""
    number = next(_numbers)
    arguments: dict[str, Any] = {"bodyBytes": plan.body_bytes, "queues": plan.queues}
    arguments |= {"warmUpMs": plan.warm_up_ms, "measureMs": plan.measure_ms}
    if broker.asked_as is not None:
        arguments |= dict(zip(("accessKey", "secretKey"), broker.asked_as, strict=True))
    if load.own_topic:
        arguments["topic"] = _create(broker, plan, number)
    arguments |= load.arguments
    for key in ("group", "coldGroup"):  # each run begins with the first message
        if key in arguments:
            arguments[key] = f"{arguments[key]}-{number}"
    if load.backlog is not None:
        backlog = {"load": "fill", "count": plan.backlog, **load.backlog}
        _client(_java(broker, plan, {**arguments, **backlog}, load), plan, number)
        arguments |= {"count": plan.backlog // load.share, "group": f"bench-{number}"}
    with ExitStack() as stack:
        if load.idle_clients:
            stack.enter_context(_idle_clients(broker, plan, load.idle_clients))
        if load.connections:
            pairs = [f"{name}={value}" for name, value in arguments.items()]
            command = [sys.executable, "-m", "tests.bench.connections", broker.address, *pairs]
        else:
            command = _java(broker, plan, arguments, load)
        return _measured(command, broker, slave, plan.scratch / f"client-{number}.log", probe)


def _create(broker: Broker, plan: Plan, number: int) -> str:
    topic = f"bench-{number}"
    account = None if broker.asked_as is None else Credentials(*broker.asked_as)
    with Admin(broker.name_server.address, credentials=account) as admin:
        admin.create_topic(topic, plan.queues)
    wait_until(lambda: has_route(broker.name_server.address, topic), f"a route to {topic}")
    return topic


def _java(broker: Broker, plan: Plan, arguments: Mapping[str, object], load: Load) -> list[str]:
    return [
        plan.java.executable,
        *CLIENT_JVM,
        *OPENS,
        f"-Drocketmq.client.logRoot={plan.scratch}",
        f"-Duser.home={plan.scratch}",
        f"-Dtls.enable={str(load.broker == TLS).lower()}",
        "-cp",
        plan.java.class_path,
        "interop.Load",
        f"nameServer={broker.name_server.address}",
        *(f"{name}={value}" for name, value in arguments.items()),
    ]


def _client(command: list[str], plan: Plan, number: int) -> None:
    """A load that is not measured."""
    log = plan.scratch / f"client-{number}.log"
    with log.open("ab") as errors:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=errors, check=False)
    if done.returncode:
        raise RuntimeError(last_words(log))


@contextmanager
def _idle_clients(broker: Broker, plan: Plan, number: int) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.bench.idle_clients", broker.address, str(number)]
    with (
        (plan.scratch / "idle.log").open("ab") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT) as idle,
    ):
        try:
            assert idle.stdout
            if not idle.stdout.readline():
                raise RuntimeError(last_words(plan.scratch / "idle.log"))
            yield
        finally:
            idle.terminate()
    used = [0.0]

    def is_quiet() -> bool:
        """Less than a tenth of a processor since the last look, some 50 ms ago."""
        used.append(scheduled_us(broker.pid))
        return used[-1] - used[-2] < 5_000

    wait_until(is_quiet, "the broker has parted with the idle clients")


def _measured(
    command: list[str], broker: Broker, slave: Broker | None, log: Path, probe: Probe | None
) -> Figures:
    """Reads the processes' figures at the moments at which the client says `begins` and `ends`."""
    os.sync()  # what other loads have left to write is not this one's
    with (
        log.open("ab") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT) as client,
    ):
        pids = (broker.pid, None if slave is None else slave.pid, client.pid)
        try:
            assert client.stdout
            lines = iter(client.stdout)
            next(lines)
            began = _used(*pids)
            if probe is not None:
                probe.begin()
            told: dict[str, Any] = json.loads(next(lines))
            ended = _used(*pids)
            if probe is not None:
                probe.end()
        except StopIteration:
            raise RuntimeError(last_words(log)) from None
        finally:
            if client.poll() is None:
                client.wait(60)
    used = [after - before for before, after in zip(began, ended, strict=True)]
    return Figures(
        messages=int(told["messages"]),
        failures=int(told["failures"]),
        seconds=float(told["seconds"]),
        broker_cpu_s=used[0],
        slave_cpu_s=used[1],
        client_cpu_s=used[2],
        machine_cpu_s=used[3],
        broker_memory=memory(broker.pid),
        p50_ms=told.get("p50Ms"),
        p99_ms=told.get("p99Ms"),
        max_ms=told.get("maxMs"),
        others=told.get("others"),
        failed_with=failures_told(log),
    )


def _used(
    broker_pid: int, slave_pid: int | None, client_pid: int
) -> tuple[float, float, float, float]:
    slave = 0.0 if slave_pid is None else cpu_seconds(slave_pid)
    return cpu_seconds(broker_pid), slave, cpu_seconds(client_pid), machine_cpu_seconds()
