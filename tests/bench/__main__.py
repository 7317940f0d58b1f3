"""`make bench`: the official Java client loads our broker and the official ones; tables, and JSON.

In each round each broker is started, warmed and given all loads, one broker after the other, for
an idle Java broker wakes a thousand times a second; each is beside its own name server. Another
one goes first in each round. Our broker runs on each Python that is named, and must not run on one
that was built without optimisation, unless told so. The official 5.5 broker takes PEER_5_LOADS.
The figures of one run compare with each other and with no other run: the machine is part of them.
A Java broker that is not warm costs several times what it costs later: each broker first takes
sends for 40 s that do not count; two brokers take less than two hours.  "elsewhere" is the share of
the processors that went to anything but broker, slave and client: where it is high, run it again on
a quiet machine.  "others/s" is what was consumed while sends count, or sent while what a listener
gets counts.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from signal import SIGTERM, signal
from tempfile import TemporaryDirectory

from tests.bench.brokers import OFFICIAL, OFFICIAL_5, SETTINGS, Opponents, changed
from tests.bench.interpreters import JIT_ON, Interpreter, UnfitInterpreter, chosen
from tests.bench.kept import (
    Run,
    figures_table,
    keep,
    kept_runs,
    loss_table,
    round_of,
    runtimes_table,
)
from tests.bench.loads import LOADS, TLS, Plan, run
from tests.bench.start_up import measure_starts, start_table
from tests.compat.servers import ROOT
from tests.compat.toolchain import MissingTool, java, java_5_servers, java_version

OURS = "ours"
BROKERS = (OFFICIAL, OFFICIAL_5, OURS)
PEER_5_LOADS = ("send", "one", "callbacks", "sync", "sync-one")
"""Loads of the official 5.5 broker."""
PLACES = ("scratch", "keep", "pythons")
"""Options that name a place of this machine: they are not kept."""


def main() -> int:
    options = parse(sys.argv[1:])
    os.environ.update(JIT_ON)
    signal(SIGTERM, lambda *_: sys.exit(1))  # servers are stopped then, and rows are kept
    try:
        pythons = chosen(options.pythons, unoptimised=options.unoptimised)
        tools = java()
        wants_5 = OFFICIAL_5 in options.brokers and not {*PEER_5_LOADS}.isdisjoint(options.loads)
        tools_5 = java_5_servers() if wants_5 else None
    except (MissingTool, UnfitInterpreter) as missing:
        print(f"no benchmark here: {missing}")
        return 1
    kinds = [kind for each in options.brokers for kind in (pythons if each == OURS else [each])]
    earlier = kept_runs(options.keep)
    names = [name for name in SETTINGS if any(LOADS[each].broker == name for each in options.loads)]
    changes = changed(names, options.official_heap)
    generators = f"{java_version(tools)}, {Interpreter.asked(sys.executable).name}"
    changes.append(f"load generators: {generators}; the official brokers' Java is the same")
    written = {name: str(value) for name, value in vars(options).items() if name not in PLACES}
    this = Run.begun_now({**written, "changed": changes})
    starts = []
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
        opponents = Opponents(
            tools,
            Path(scratch),
            options.official_heap,
            options.store_gib,
            pythons={name: each.path for name, each in pythons.items()},
            java_5=tools_5,
        )
        try:
            for number in range(max(options.rounds)):
                run_round(number, options, kinds, plan, opponents, this)
        finally:
            if this.rows:
                keep(options.keep, [*earlier, this])
        if options.start_gib:
            started = [kind for kind in kinds if kind != OFFICIAL_5]
            starts = measure_starts(options, started, opponents, Path(scratch) / "starts")
            this.starts = [asdict(each) for each in starts]
            keep(options.keep, [*earlier, this])
    print_tables(this, options, changes)
    if starts:
        print("", start_table(starts), sep="\n")
    return 0


def print_tables(this: Run, options: argparse.Namespace, changes: Sequence[str]) -> None:
    """Print what all loads measured; nothing where there was none."""
    if not this.rows:
        return
    print(f"{this.date}, {this.commit}: {this.machine}; {options.seconds:g} s after")
    print(f"{options.warm_up:g} s of warm-up; medians, and the lowest and highest of the rounds")
    print(*changes, sep="\n")
    for table in (figures_table(this), runtimes_table(this), loss_table(this)):
        if table:
            print("", table, sep="\n")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    add = parser.add_argument
    add("--loads", nargs="*", choices=LOADS, default=list(LOADS), metavar="LOAD")
    add("--brokers", nargs="+", choices=BROKERS, default=list(BROKERS))
    add("--pythons", nargs="+", default=[sys.executable], metavar="PATH", help="that run ours")
    add("--unoptimised", action="store_true", help="take Pythons that are built so, too")
    add("--seconds", type=float, default=5, help="measured time of a load")
    add("--warm-up", type=float, default=2, help="seconds before it")
    add("--broker-warm-up", type=float, default=40, help="seconds of sends before all loads")
    add("--rounds", type=int, nargs=2, default=(5, 3), help="of the first loads, of the others")
    add("--queues", type=int, default=8, help="of a topic")
    add("--body-bytes", type=int, default=128)
    add("--backlog", type=int, default=1_000_000, help="messages to consume")
    add("--store-gib", type=int, default=20, help="of the large store")
    add("--start-gib", type=int, default=10, help="store to start on; 0: none")
    add("--dirty-gib", type=int, default=2, help="of it, not covered by checkpoint")
    add("--official-heap", default="2g")
    add("--scratch", help="where the stores lie (default: the temporary folder)")
    add("--keep", type=Path, default=ROOT / "docs" / "performance.json", help="all runs' figures")
    return parser.parse_args(arguments)


def in_turn(kinds: Sequence[str], number: int) -> list[str]:
    """Return the brokers in the order of that round: another one goes first in each."""
    first = number % len(kinds)
    return [*kinds[first:], *kinds[:first]]


def run_round(
    number: int,
    options: argparse.Namespace,
    kinds: Sequence[str],
    plan: Plan,
    opponents: Opponents,
    this: Run,
) -> None:
    """The loads that have so many rounds, against each broker that they need."""
    first_rounds, other_rounds = options.rounds
    for name in SETTINGS:
        loads = [
            each
            for each in options.loads
            if LOADS[each].broker == name
            and number < (other_rounds if LOADS[each].is_new else first_rounds)
        ]
        for kind in in_turn(kinds, number):
            own = [each for each in loads if kind != OFFICIAL_5 or each in PEER_5_LOADS]
            if not own:
                continue
            with opponents.started(kind, name) as (broker, slave):
                first_ms = int(options.broker_warm_up * 1000)
                warming = LOADS["send-tls" if name == TLS else "send"]
                run(warming, broker, replace(plan, warm_up_ms=first_ms, measure_ms=1))
                for each in own:
                    figures = run(LOADS[each], broker, plan, slave)
                    this.rows.setdefault((each, kind), []).append(round_of(figures))
                    line = f"{each} {kind} {figures.per_second:,.0f}/s {figures.broker_us:.2f} µs"
                    p99 = "" if figures.p99_ms is None else f" p99 {figures.p99_ms:.2f} ms"
                    failed = f" {figures.failures} failed" if figures.failures else ""
                    print(f"{line}{p99}{failed}", file=sys.stderr, flush=True)
                    print(figures.failed_with, end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
