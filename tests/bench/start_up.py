"""Time until a broker serves a large store: ours and the official one, each on its own.

A start is measured from the launch of the process until the broker is registered and its route is
available. Cleanly stopped: the same broker stopped it before. After a crash: the checkpoint covers
all but the last `dirty_gib` log files, whose records must be read. The store was just written, so
much of it is in the page cache for both.
"""

import shutil
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from tests.bench.big_store import make_store, mark_crashed
from tests.bench.brokers import OFFICIAL, Opponents

SPARE_BYTES = 8 << 30
SETTINGS = {"autoCreateTopicEnable": "true"}
COLUMNS = ("start", "broker", "store GiB", "dirty GiB", "s", "s/dirty GiB", "÷ official", "goal")
GOALS = {False: 0.2, True: 0.5}
"""Ours ÷ official at most: after a clean stop, after a crash."""


@dataclass(frozen=True)
class StartFigures:
    """Figures of one start."""

    kind: str
    crashed: bool
    store_gib: int
    dirty_gib: int
    seconds: float


def measure_starts(
    options: Namespace, kinds: Sequence[str], opponents: Opponents, scratch: Path
) -> list[StartFigures]:
    """A clean start and one after a crash, of each broker; none where the disk has no room."""
    scratch.mkdir(parents=True)
    free_gib = (shutil.disk_usage(scratch).free - SPARE_BYTES) >> 30
    gib = min(options.start_gib, free_gib)
    dirty = min(options.dirty_gib, gib)
    if gib < 1:
        return []
    found = []
    for number, kind in enumerate(kinds):
        folder = scratch / str(number)
        make_store(folder / "store", gib)
        timed_start(kind, opponents, folder, "first")
        seconds = timed_start(kind, opponents, folder, "clean")
        found.append(StartFigures(kind, False, gib, 0, seconds))
        mark_crashed(folder / "store", gib, dirty)
        seconds = timed_start(kind, opponents, folder, "crashed")
        found.append(StartFigures(kind, True, gib, dirty, seconds))
        shutil.rmtree(folder)
    return found


def timed_start(kind: str, opponents: Opponents, folder: Path, name: str) -> float:
    """Seconds until it serves the store of the folder; it is stopped again."""
    with opponents.name_server(kind, folder / name / "names") as names:
        broker = opponents.broker(kind, folder / name, names, SETTINGS)
        broker.store = folder / "store"
        begin = monotonic()
        with broker:
            return monotonic() - begin


def start_table(figures: list[StartFigures]) -> str:
    """Return the starts as a Markdown table."""
    rows = [COLUMNS, ("---",) * 2 + ("---:",) * (len(COLUMNS) - 2)]
    for each in figures:
        per_gib = f"{each.seconds / each.dirty_gib:.1f}" if each.dirty_gib else ""
        state = "after a crash" if each.crashed else "after a clean stop"
        sizes = str(each.store_gib), str(each.dirty_gib)
        rows.append(
            (state, each.kind, *sizes, f"{each.seconds:.1f}", per_gib, *_beside(each, figures))
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _beside(start: StartFigures, all_starts: list[StartFigures]) -> tuple[str, str]:
    """Our share of the official one's time, ! where it is above the goal; and the goal."""
    official = [
        each.seconds
        for each in all_starts
        if each.kind == OFFICIAL and each.crashed == start.crashed
    ]
    if start.kind == OFFICIAL or not official:
        return "", ""
    ratio, goal = start.seconds / official[0], GOALS[start.crashed]
    return f"{ratio:.2f}" + " !" * (ratio > goal), f"≤ {goal}"
