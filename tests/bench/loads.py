"""The loads of the broker benchmark, each run by the official Java client against one broker."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.bench.process_figures import Memory, cpu_seconds, machine_cpu_seconds, memory
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route
from tests.compat.servers import OPENS, Broker
from tests.compat.toolchain import Java

CLIENT_JVM = ["-server", "-Xms1g", "-Xmx1g"]
BENCHMARK_TOPIC = "BenchmarkTest"  # every broker has it, with this many queues
BENCHMARK_QUEUES = 1024


@dataclass(frozen=True)
class Plan:
    """What all loads of a run have in common."""

    java: Java
    scratch: Path
    queues: int
    body_bytes: int
    warm_up_ms: int
    measure_ms: int
    backlog: int


@dataclass(frozen=True)
class Load:
    """One load; `threads` = 0 is the push consumer."""

    title: str
    threads: int = 0
    in_flight: int = 0
    mode: str = "ASYNC_FLUSH"
    """How brokers run for it; SYNC_MASTER: under ASYNC_FLUSH, with a slave of the same kind."""


@dataclass(frozen=True)
class Figures:
    """What one run of a load measured; latencies are None where nobody waits for an answer."""

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


LOADS = {
    "send": Load("send, 64 threads", 64),
    "one": Load("send, 1 thread", 1),
    "callbacks": Load("send, 16 threads with callbacks, {in_flight} in flight", 16, 256),
    "sync": Load("send, 64 threads, SYNC_FLUSH", 64, mode="SYNC_FLUSH"),
    "sync-one": Load("send, 1 thread, SYNC_FLUSH", 1, mode="SYNC_FLUSH"),
    "replica": Load("send, 64 threads, SYNC_MASTER", 64, mode="SYNC_MASTER"),
    "replica-one": Load("send, 1 thread, SYNC_MASTER", 1, mode="SYNC_MASTER"),
    "consume": Load("push-consume a backlog"),
}

_numbers = count(1)


def run(load: Load, broker: Broker, plan: Plan, slave: Broker | None = None) -> Figures:
    """Runs `load` once; RuntimeError with the client's words if it fails."""
    number = next(_numbers)
    topic = _topic(load, broker, plan, number)
    arguments = {"topic": topic, "bodyBytes": plan.body_bytes, "threads": load.threads}
    arguments |= {"warmUpMs": plan.warm_up_ms, "measureMs": plan.measure_ms}
    if not load.threads:
        _client(broker, plan, {"load": "fill", "count": plan.backlog, **arguments}, number)
        consume = {"load": "consume", "count": plan.backlog, "group": f"bench-{number}"}
        return _measured(broker, slave, plan, {**arguments, **consume}, number)
    if load.in_flight:
        arguments |= {"load": "callbacks", "inFlight": load.in_flight}
        return _measured(broker, slave, plan, arguments, number)
    return _measured(broker, slave, plan, {"load": "send", **arguments}, number)


def _topic(load: Load, broker: Broker, plan: Plan, number: int) -> str:
    if plan.queues == BENCHMARK_QUEUES and load.threads:
        return BENCHMARK_TOPIC
    topic = f"bench-{number}"
    create = {"load": "create", "topic": topic, "queues": plan.queues, "bodyBytes": 0}
    _client(broker, plan, create, number)
    wait_until(lambda: has_route(broker.name_server.address, topic), f"a route to {topic}")
    return topic


def _command(broker: Broker, plan: Plan, arguments: dict[str, object]) -> list[str]:
    return [
        plan.java.executable,
        *CLIENT_JVM,
        *OPENS,
        f"-Drocketmq.client.logRoot={plan.scratch}",
        f"-Duser.home={plan.scratch}",
        "-cp",
        plan.java.class_path,
        "interop.Load",
        f"nameServer={broker.name_server.address}",
        *(f"{name}={value}" for name, value in arguments.items()),
    ]


def _client(broker: Broker, plan: Plan, arguments: dict[str, object], number: int) -> None:
    """A load that is not measured."""
    log = plan.scratch / f"client-{number}.log"
    with log.open("ab") as errors:
        done = subprocess.run(
            _command(broker, plan, arguments), stdout=subprocess.DEVNULL, stderr=errors, check=False
        )
    if done.returncode:
        raise RuntimeError(log.read_text())


def _measured(
    broker: Broker, slave: Broker | None, plan: Plan, arguments: dict[str, object], number: int
) -> Figures:
    """Reads the processes' figures at the moments at which the client says `begins` and `ends`."""
    slave_pid = None if slave is None else slave.pid
    os.sync()  # what other loads have left to write is not this one's
    log = plan.scratch / f"client-{number}.log"
    with (
        log.open("ab") as errors,
        subprocess.Popen(
            _command(broker, plan, arguments), stdout=subprocess.PIPE, stderr=errors
        ) as client,
    ):
        try:
            assert client.stdout
            marks = _marks(iter(client.stdout), broker.pid, slave_pid, client.pid)
            _, *began = next(marks)
            told, *ended = next(marks)
        except StopIteration:
            raise RuntimeError(log.read_text()) from None
        finally:
            if client.poll() is None:
                client.wait(60)
    return Figures(
        messages=int(told["messages"] or 0),
        failures=int(told["failures"] or 0),
        seconds=float(told["seconds"] or 0),
        broker_cpu_s=ended[0] - began[0],
        slave_cpu_s=ended[1] - began[1],
        client_cpu_s=ended[2] - began[2],
        machine_cpu_s=ended[3] - began[3],
        broker_memory=memory(broker.pid),
        p50_ms=told.get("p50Ms"),
        p99_ms=told.get("p99Ms"),
        max_ms=told.get("maxMs"),
    )


def _marks(
    lines: Iterator[bytes], broker_pid: int, slave_pid: int | None, client_pid: int
) -> Iterator[tuple[dict[str, float | None], float, float, float, float]]:
    for line in lines:
        told = json.loads(line)
        slave = 0.0 if slave_pid is None else cpu_seconds(slave_pid)
        yield told, cpu_seconds(broker_pid), slave, cpu_seconds(client_pid), machine_cpu_seconds()
