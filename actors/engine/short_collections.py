"""Short garbage collections, for a server process.

A collection of Python's oldest generation visits every object, and nothing else runs meanwhile.
With 100,000 held pulls it took 130 ms. Here the survivors of a collection are set aside
(gc.freeze), so that the next one visits only newer objects. Every ALL_S seconds a collection visits
all objects again, for cycles that have died among the old ones. Nearly all objects are in no cycle,
and are freed with their last reference.

PyPy collects in steps; a server sets their length (interpreter_environment.py in troupemq). There
the last reference frees nothing: unclosed files and maps wait for the collector.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

OLDEST = 2
THRESHOLDS = (700, 10, 2)
"""Triggers: the oldest generation is visited after 14,000 more objects, not 70,000: 4 ms."""

ALL_S = 300.0

PAUSE_S = 0.001

_SETS_ASIDE = hasattr(gc, "freeze")
"""Whether the collector can leave out old objects; PyPy's visits them in steps."""

_STEP: Callable[[], Any] | None = getattr(gc, "collect_step", None)

_blocks: list[object] = []


def set_aside() -> None:
    """Count all present objects as old in the next collections; takes no time.

    For code that has made very many objects of which few die in cycles. Has an effect only inside
    `short_collections`.
    """
    if _blocks and _SETS_ASIDE:
        gc.freeze()


@contextmanager
def short_collections(clock: Callable[[], float] = monotonic) -> Iterator[None]:
    """Keep the collections of this process short until the block ends; `clock` is in seconds."""
    if not _SETS_ASIDE:
        yield
        return
    looked_at_all_s = clock()

    def on_collection(phase: str, info: dict[str, int]) -> None:
        nonlocal looked_at_all_s
        if info["generation"] != OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif clock() - looked_at_all_s >= ALL_S:
            looked_at_all_s = clock()
            gc.unfreeze()

    before, were_aside = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(on_collection)
    _blocks.append(on_collection)
    try:
        yield
    finally:
        _blocks.remove(on_collection)
        gc.callbacks.remove(on_collection)
        gc.set_threshold(*before)
        if not were_aside:
            gc.unfreeze()


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the collector for a block that makes many objects, none of which ends in a cycle.

    On PyPy the collector goes on: its steps are short, and a pause would let the heap grow for
    ever.
    """
    if not _SETS_ASIDE or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        set_aside()  # else the next collection would visit all objects that the block has left
        gc.enable()


def end_unreferenced(
    step: Callable[[], Any] | None = _STEP, pause: Callable[[float], None] = sleep
) -> None:
    """Free unreferenced maps and files, which takes PyPy 0.3 s with pauses. Not on the loop."""
    if step is not None:
        for _ in range(2):  # a running collection may have passed them
            while not step().major_is_done:
                pause(PAUSE_S)
