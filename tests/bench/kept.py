"""Results of `make bench`: tables of a run, and a JSON file with all runs, the newest last.

[{"date", "commit", "machine", "options": {name: value}, "rows": [{"load", "broker", "rounds":
[{"messages/s", "broker_us", …}, …]}, …], "starts": [{"kind", "crashed", "store_gib", "dirty_gib",
"seconds"}, …]}, …]

A broker is "official" (4.9.7), "official-5.5", or ours by the name of its Python, for example "PyPy
8.0.1 (Python 3.11.15)". Before 2026-11-26 ours was "ours" and ran on a CPython 3.11.7 that was
built without optimisation. A + after a commit means uncommitted changes.
"""

import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from json import dumps, loads
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.brokers import OFFICIAL, OFFICIALS
from tests.bench.loads import LOADS, P99_MAX, Figures

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Beside:
    """A load that another one is the same as but for accounts or TLS, and what these may cost."""

    load: str
    rate: float | None = None
    """The least change of messages/s."""
    cpu: float | None = None
    """The greatest of the broker's processor for a message."""


BESIDE = {
    "send-acl": Beside("send", cpu=0.15),
    "send-tls": Beside("send", rate=-0.35),
    "callbacks-tls": Beside("callbacks", rate=-0.35),
    "consume-tls": Beside("consume", rate=-0.35),
}

Round = Mapping[str, float | None]
NUMBERS = (
    ("messages/s", "messages/s", "{:,.0f}"),
    ("broker_us", "broker µs/message", "{:.2f}"),
    ("slave_us", "slave µs/message", "{:.2f}"),
    ("client_us", "client µs/message", "{:.2f}"),
    ("others/s", "others/s", "{:,.0f}"),
    ("p50_ms", "p50 ms", "{:.2f}"),
    ("p99_ms", "p99 ms", "{:.2f}"),
    ("max_ms", "max ms", "{:.1f}"),
    ("rss_mib", "RSS MiB", "{:,.0f}"),
    ("anonymous_mib", "anonymous MiB", "{:,.0f}"),
    ("failures", "failures", "{:.0f}"),
    ("elsewhere", "elsewhere", "{:.0%}"),
)
"""Key, heading, form."""
CPU = "cpu_us"
"""Processor time of the broker and, if there is one, its slave: the subject of the goals."""
WITH_SPREAD = ("messages/s", "broker_us", "p99_ms")


def round_of(figures: Figures) -> Round:
    """Return the stored figures of one run of a load."""
    others = figures.others
    return {
        "messages/s": figures.per_second,
        "broker_us": figures.broker_us,
        "slave_us": figures.slave_us if figures.slave_cpu_s else None,
        "client_us": figures.client_us,
        "others/s": None if others is None else others / figures.seconds,
        "p50_ms": figures.p50_ms,
        "p99_ms": figures.p99_ms,
        "max_ms": figures.max_ms,
        "rss_mib": figures.broker_memory.resident_kib / 1024,
        "anonymous_mib": figures.broker_memory.anonymous_kib / 1024,
        "failures": figures.failures,
        "elsewhere": figures.elsewhere,
    }


@dataclass
class Run:
    """One run of the benchmark."""

    date: str
    commit: str
    machine: str
    options: dict[str, Any]
    rows: dict[tuple[str, str], list[Round]]
    """Rounds by load and kind of broker."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """The fields of StartFigures (start_up.py)."""

    @classmethod
    def begun_now(cls, options: dict[str, Any]) -> "Run":
        machine = f"{os.cpu_count()} cores, Linux {platform.release()}"
        return cls(f"{datetime.now(UTC):%Y-%m-%d %H:%M}", commit(), machine, options, {})

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Run":
        rows = {(row["load"], row["broker"]): row["rounds"] for row in found["rows"]}
        about = found["date"], found["commit"], found["machine"], found["options"]
        return cls(*about, rows, found.get("starts", []))

    def as_json(self) -> dict[str, Any]:
        rows = [
            {"load": load, "broker": kind, "rounds": rounds}
            for (load, kind), rounds in self.rows.items()
        ]
        found = {"date": self.date, "commit": self.commit, "machine": self.machine}
        return {**found, "options": self.options, "rows": rows, "starts": self.starts}

    def middle(self, load: str, kind: str, key: str) -> float | None:
        """The median; None where it is not measured."""
        values = _values(self.rows.get((load, kind), []), key)
        return median(values) if values else None


def commit() -> str:
    """The short name of what is checked out."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + "+" * bool(git("status", "--porcelain", "-uno"))


def kept_runs(path: Path) -> list[Run]:
    """The oldest first; none where there is no file."""
    return [Run.from_json(found) for found in loads(path.read_text())] if path.exists() else []


def keep(path: Path, runs: Sequence[Run]) -> None:
    texts = [dumps(run.as_json(), ensure_ascii=False) for run in runs]
    path.write_text("[\n" + ",\n".join(texts) + "\n]\n")


def figures_table(run: Run) -> str:
    """Markdown: one row for each load and broker, medians, and their spread in brackets."""
    used = [
        number
        for number in NUMBERS
        if any(_values(rounds, number[0]) for rounds in run.rows.values())
    ]
    rows: list[Sequence[str]] = [("load", "broker", *(heading for _, heading, _ in used))]
    for (load, kind), rounds in run.rows.items():
        cells = [_cell(_values(rounds, key), key, form.format) for key, _, form in used]
        rows.append((LOADS[load].title if load in LOADS else load, kind, *cells))
    return _markdown(rows, 2)


def runtimes_table(run: Run) -> str:
    """Return Markdown: each broker ÷ the official one, beside the goals of ours.

    A cell has rate, processor time and p99; an exclamation mark follows what misses its goal.
    """
    loads = [name for name in dict.fromkeys(load for load, _ in run.rows) if name in LOADS]
    kinds = [kind for kind in dict.fromkeys(kind for _, kind in run.rows) if kind != OFFICIAL]
    kinds.sort(key=lambda kind: kind not in OFFICIALS)
    rows: list[Sequence[str]] = [("÷ official: messages/s, CPU, p99", "goal of ours", *kinds)]
    for name in loads:
        goal = LOADS[name].goal
        cells = [_ratios(run, name, kind) for kind in kinds]
        if any(cells):
            goals = f"≥ {goal.rate}, ≤ {goal.cpu}, ≤ {P99_MAX}"
            rows.append((LOADS[name].title, goals, *cells))
    if len(rows) == 1:
        return ""
    most = [f"{_most_anonymous(run, kind):,.0f}" for kind in (OFFICIAL, *kinds)]
    rows.append((f"anonymous MiB at most (official {most[0]})", "", *most[1:]))
    return _markdown(rows, 1)


def _ratios(run: Run, load: str, kind: str) -> str:
    """Return the cell of one broker; empty where it or the official one did not run."""
    goal = LOADS[load].goal
    rate, cpu = _ratio(run, load, kind, "messages/s"), _ratio(run, load, kind, CPU)
    p99 = _ratio(run, load, kind, "p99_ms")
    if rate is None or cpu is None:
        return ""
    found = [(rate, round(rate, 2) < goal.rate), (cpu, round(cpu, 2) > goal.cpu)]
    found += [] if p99 is None else [(p99, round(p99, 2) > P99_MAX)]
    return ", ".join(
        f"{ratio:.2f}" + " !" * (misses and kind not in OFFICIALS) for ratio, misses in found
    )


def _most_anonymous(run: Run, kind: str) -> float:
    every = (rounds for (_, each), rounds in run.rows.items() if each == kind)
    return max((max(_values(rounds, "anonymous_mib")) for rounds in every), default=0)


def loss_table(run: Run) -> str:
    """Markdown: what accounts and TLS change beside the same load without them; ! as above."""
    rows: list[Sequence[str]] = [
        ("beside the load without", "broker", "messages/s", "goal", "CPU", "goal")
    ]
    for load, kind in run.rows:
        if load not in BESIDE:
            continue
        beside = BESIDE[load]
        rate = _change(run, kind, load, beside.load, "messages/s")
        cpu = _change(run, kind, load, beside.load, "broker_us")
        if rate is None or cpu is None:
            continue
        is_slow = beside.rate is not None and rate < beside.rate
        is_dear = beside.cpu is not None and cpu > beside.cpu
        rows.append(
            (
                LOADS[load].title,
                kind,
                f"{rate:+.0%}" + " !" * is_slow,
                "" if beside.rate is None else f"≥ {beside.rate:+.0%}",
                f"{cpu:+.0%}" + " !" * is_dear,
                "" if beside.cpu is None else f"≤ {beside.cpu:+.0%}",
            )
        )
    return _markdown(rows, 2) if len(rows) > 1 else ""


def _change(run: Run, kind: str, load: str, beside: str, key: str) -> float | None:
    with_it, without = run.middle(load, kind, key), run.middle(beside, kind, key)
    return with_it / without - 1 if with_it is not None and without else None


def _values(rounds: Sequence[Round], key: str) -> list[float]:
    if key == CPU:
        both = [(each.get("broker_us"), each.get("slave_us")) for each in rounds]
        return [broker_us + (slave_us or 0.0) for broker_us, slave_us in both if broker_us]
    found = [each.get(key) for each in rounds]
    return [value for value in found if value is not None]


def _cell(values: Sequence[float], key: str, form: Callable[[float], str]) -> str:
    if not values:
        return ""
    if key not in WITH_SPREAD or len(values) == 1:
        return form(median(values))
    return f"{form(median(values))} ({form(min(values))}–{form(max(values))})"


def _ratio(run: Run, load: str, kind: str, key: str) -> float | None:
    ours, official = run.middle(load, kind, key), run.middle(load, OFFICIAL, key)
    return ours / official if ours is not None and official else None


def _markdown(rows: Sequence[Sequence[str]], words: int) -> str:
    """`words`: so many columns are not numbers."""
    line = ["---"] * words + ["---:"] * (len(rows[0]) - words)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (rows[0], line, *rows[1:]))
