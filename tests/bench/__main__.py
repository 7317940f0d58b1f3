"""`make bench`: the official Java client loads our broker and the official one in turn; a table.

Every load runs against each broker, one after the other, each broker beside its own name server.
The figures of one run compare with each other and with no other run: the machine is part of them.
A Java broker that is not warm costs several times what it costs later: each broker first takes
sends for 20 s that do not count.  "elsewhere" is the share of the processors that went to anything
but broker, slave and client: where it is high, run it again on a quiet machine.
"""

import argparse
import os
import platform
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench.loads import LOADS, Figures, Load, Plan, run
from tests.bench.start_up import measure_starts, start_table
from tests.compat.servers import (
    Broker,
    NameServer,
    OfficialBroker,
    OfficialNameServer,
    OurBroker,
    OurNameServer,
)
from tests.compat.toolchain import Java, MissingTool, java

# The release's own options, on a heap that fits beside the client.
OFFICIAL_JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:+AlwaysPreTouch",
    "-XX:-UseLargePages",
)
COLUMNS = (
    "load",
    "broker",
    "messages/s",
    "broker µs/message",
    "slave µs/message",
    "client µs/message",
    "p50 ms",
    "p99 ms",
    "max ms",
    "broker RSS MiB (anonymous)",
    "failures",
    "elsewhere",
)


def main() -> int:
    options = parse(sys.argv[1:])
    try:
        tools = java()
    except MissingTool as missing:
        print(f"no benchmark here: {missing}")
        return 1
    results: dict[tuple[str, str], list[Figures]] = {}
    with TemporaryDirectory(prefix="troupemq-bench-", dir=options.scratch) as scratch:
        plan = Plan(
            tools,
            Path(scratch),
            options.queues,
            options.body_bytes,
            int(options.warm_up * 1000),
            int(options.seconds * 1000),
            options.backlog,
        )
        for mode in ("ASYNC_FLUSH", "SYNC_FLUSH", "SYNC_MASTER"):
            loads = {name: LOADS[name] for name in options.loads if LOADS[name].mode == mode}
            if loads:
                run_all(loads, mode, options, plan, results)
        starts = []
        if options.start_gib:
            heap = options.official_heap
            jvm_options = (f"-Xms{heap}", f"-Xmx{heap}", *OFFICIAL_JVM)
            starts = measure_starts(options, tools, Path(scratch) / "starts", jvm_options)
    if results:
        print(table(options, plan, results))
    if starts:
        print("", start_table(starts), sep="\n")
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--loads", nargs="*", choices=LOADS, default=list(LOADS))
    parser.add_argument(
        "--brokers", nargs="+", choices=("ours", "official"), default=["official", "ours"]
    )
    parser.add_argument("--seconds", type=float, default=10, help="measured time of a load")
    parser.add_argument("--warm-up", type=float, default=5, help="seconds before it")
    parser.add_argument(
        "--broker-warm-up", type=float, default=20, help="seconds of sends before a broker's loads"
    )
    parser.add_argument("--rounds", type=int, default=1, help="runs of a load; prints the median")
    parser.add_argument("--queues", type=int, default=8, help="1024 is BenchmarkTest")
    parser.add_argument("--body-bytes", type=int, default=128)
    parser.add_argument("--in-flight", type=int, default=256, help="of the load with callbacks")
    parser.add_argument("--backlog", type=int, default=2_000_000, help="messages to consume")
    parser.add_argument("--start-gib", type=int, default=10, help="store to start on; 0: none")
    parser.add_argument("--dirty-gib", type=int, default=2, help="of it, not covered by checkpoint")
    parser.add_argument("--official-heap", default="2g")
    parser.add_argument("--scratch", help="where the stores lie (default: the temporary folder)")
    return parser.parse_args(arguments)


def run_all(
    loads: dict[str, Load],
    mode: str,
    options: argparse.Namespace,
    plan: Plan,
    results: dict[tuple[str, str], list[Figures]],
) -> None:
    first_ms = int(options.broker_warm_up * 1000)
    with ExitStack() as stack:
        brokers = {
            kind: start(stack, kind, mode, plan.java, plan.scratch / mode / kind, options)
            for kind in options.brokers
        }
        for broker, _ in brokers.values():
            run(LOADS["send"], broker, replace(plan, warm_up_ms=first_ms, measure_ms=1))
        for _ in range(options.rounds):
            for name, load in loads.items():
                if load.in_flight:
                    load = replace(load, in_flight=options.in_flight)
                for kind, (broker, slave) in brokers.items():
                    figures = run(load, broker, plan, slave)
                    results.setdefault((name, kind), []).append(figures)
                    print(" ".join(row(name, kind, figures)), file=sys.stderr, flush=True)


def start(
    stack: ExitStack,
    kind: str,
    mode: str,
    tools: Java,
    scratch: Path,
    options: argparse.Namespace,
) -> tuple[Broker, Broker | None]:
    """A broker for that mode, and its slave if it has one, beside a name server."""
    if kind == "ours":
        names: NameServer = stack.enter_context(OurNameServer(scratch / "names"))
    else:
        names = stack.enter_context(OfficialNameServer(tools, scratch / "names"))

    def broker(folder: Path, settings: dict[str, str]) -> Broker:
        if kind == "ours":
            return stack.enter_context(OurBroker(folder, names, settings))
        official = OfficialBroker(tools, folder, names, settings)
        heap = options.official_heap
        official.jvm_options = (f"-Xms{heap}", f"-Xmx{heap}", *OFFICIAL_JVM)
        return stack.enter_context(official)

    if mode != "SYNC_MASTER":
        return broker(scratch, {"flushDiskType": mode}), None
    master = broker(scratch, {"brokerRole": mode})
    return master, broker(scratch / "slave", {"brokerRole": "SLAVE", "brokerId": "1"})


def table(
    options: argparse.Namespace, plan: Plan, results: dict[tuple[str, str], list[Figures]]
) -> str:
    """Markdown: what it ran on, then one row for each load and broker."""
    machine = (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}; "
        f"{plan.body_bytes}-byte bodies, {plan.queues} queues, binary header, "
        f"{options.seconds:g} s after {options.warm_up:g} s of warm-up, "
        f"median of {options.rounds} round(s)."
    )
    rows = [COLUMNS, ("---",) * 2 + ("---:",) * (len(COLUMNS) - 2)]
    for (name, kind), all_figures in results.items():
        middle = median(figures.per_second for figures in all_figures)
        typical = min(all_figures, key=lambda figures: abs(figures.per_second - middle))
        title = LOADS[name].title.format(in_flight=options.in_flight)
        rows.append(row(title, kind, typical))
    return "\n".join([machine, "", *(f"| {' | '.join(cells)} |" for cells in rows)])


def row(title: str, kind: str, figures: Figures) -> tuple[str, ...]:
    memory = figures.broker_memory
    return (
        title,
        kind,
        f"{figures.per_second:,.0f}",
        f"{figures.broker_us:.2f}",
        f"{figures.slave_us:.2f}" if figures.slave_cpu_s else "",
        f"{figures.client_us:.2f}",
        *(f"{ms:.2f}" if ms is not None else "" for ms in latencies(figures)),
        f"{memory.resident_kib / 1024:,.0f} ({memory.anonymous_kib / 1024:,.0f})",
        str(figures.failures),
        f"{figures.elsewhere:.0%}",
    )


def latencies(figures: Figures) -> tuple[float | None, ...]:
    return figures.p50_ms, figures.p99_ms, figures.max_ms


if __name__ == "__main__":
    sys.exit(main())
