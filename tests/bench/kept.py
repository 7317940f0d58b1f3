"""What `make bench` has measured: tables of a run, and a JSON file with all runs, the newest last.

    [{"date", "commit", "machine", "options": {name: value},
      "rows": [{"load", "broker", "rounds": [{"messages/s", "broker_us", …}, …]}, …],
      "starts": [{"kind", "crashed", "store_gib", "dirty_gib", "seconds"}, …]}, …]

A commit with a + behind it had changes that were not committed.
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

from tests.bench.loads import LOADS, Figures

ROOT = Path(__file__).resolve().parents[2]
EARLIER_MAX = 3
"""Earlier runs of a load that are printed."""


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
    ("anonymous_mib", "anonymous", "{:,.0f}"),
    ("failures", "failures", "{:.0f}"),
    ("elsewhere", "elsewhere", "{:.0%}"),
)
"""Key, heading, form."""
CPU = "cpu_us"
"""Of the broker and, where there is one, its slave: what the goals are about."""
WITH_SPREAD = ("messages/s", "broker_us", "p99_ms")


def round_of(figures: Figures) -> Round:
    """What is kept of one run of a load."""
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
    """By load and kind of broker."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """The fields of StartFigures (start_up.py)."""

    @classmethod
    def begun_now(cls, options: dict[str, Any]) -> "Run":
        machine = (
            f"{os.cpu_count()} cores, Linux {platform.release()}, "
            f"Python {platform.python_version()}"
        )
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


def ratio_table(run: Run) -> str:
    """Markdown: ours ÷ official with the goals; what misses one has an exclamation mark."""
    rows: list[Sequence[str]] = [
        ("ours ÷ official", "messages/s", "goal", "CPU", "goal", "p99", "goal", "resident")
    ]
    for name in dict.fromkeys(load for load, _ in run.rows):
        if name not in LOADS:
            continue
        goal, cpu = LOADS[name].goal, _ratio(run, name, CPU)
        rate = _ratio(run, name, "messages/s")
        if rate is None or cpu is None:
            continue
        rows.append(
            (
                LOADS[name].title,
                f"{rate:.2f}" + " !" * (round(rate, 2) < goal.rate),
                f"≥ {goal.rate}",
                f"{cpu:.2f}" + " !" * (round(cpu, 2) > goal.cpu),
                f"≤ {goal.cpu}",
                _at_most(_ratio(run, name, "p99_ms"), goal.p99),
                "" if goal.p99 is None else f"≤ {goal.p99}",
                _at_most(_ratio(run, name, "rss_mib"), goal.resident),
            )
        )
    return _markdown(rows, 1) if len(rows) > 1 else ""


def _at_most(ratio: float | None, goal: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}" + " !" * (goal is not None and round(ratio, 2) > goal)


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


def earlier_table(run: Run, earlier: Sequence[Run]) -> str:
    """Markdown: the newest runs before of the same loads; of other days, so of another machine."""
    rows: list[Sequence[str]] = [
        ("load", "date", "commit", "ours/s", "µs", "official/s", "µs", "messages/s", "CPU")
    ]
    for name in dict.fromkeys(load for load, _ in run.rows):
        before = [each for each in earlier if (name, "ours") in each.rows]
        for each in before[-EARLIER_MAX:]:
            cells = []
            for kind in ("ours", "official"):
                for key, form in (("messages/s", "{:,.0f}"), (CPU, "{:.2f}")):
                    value = each.middle(name, kind, key)
                    cells.append("" if value is None else form.format(value))
            for key in ("messages/s", CPU):
                ratio = _ratio(each, name, key)
                cells.append("" if ratio is None else f"{ratio:.2f}")
            title = LOADS[name].title if name in LOADS else name
            rows.append((title, each.date, each.commit, *cells))
    return _markdown(rows, 3) if len(rows) > 1 else ""


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


def _ratio(run: Run, load: str, key: str) -> float | None:
    ours, official = run.middle(load, "ours", key), run.middle(load, "official", key)
    return ours / official if ours is not None and official else None


def _markdown(rows: Sequence[Sequence[str]], words: int) -> str:
    """`words`: so many columns are not numbers."""
    line = ["---"] * words + ["---:"] * (len(rows[0]) - words)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (rows[0], line, *rows[1:]))
