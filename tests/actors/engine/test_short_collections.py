"""Tests of short garbage collections: mostly new objects, now and then all."""

import gc
from collections.abc import Iterator
from weakref import ref

import pytest

from actors.engine.short_collections import ALL_S, THRESHOLDS, short_collections
from tests.support.runtimes import of_cpython

pytestmark = of_cpython


class Knot:
    """Object that only a collection frees."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def all_is_looked_at_at_first() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()  # as tests/conftest.py has it


@pytest.mark.heavy
def test_objects_that_survive_a_collection_are_not_scanned_again() -> None:
    with short_collections():
        assert gc.get_threshold() == THRESHOLDS
        old, young = Knot(), Knot()
        seen_old = ref(old)
        del young
        gc.collect()
        assert gc.get_freeze_count() > 0
        del old
        gc.collect()
        assert seen_old() is not None
    gc.collect()
    assert seen_old() is None


def test_a_short_lived_cycle_is_freed_by_the_next_collection() -> None:
    with short_collections():
        gc.collect()
        seen = ref(Knot())
        gc.collect()
        assert seen() is None


@pytest.mark.heavy
def test_all_objects_are_scanned_every_few_minutes() -> None:
    now_s = [0.0]
    with short_collections(lambda: now_s[0]):
        old = Knot()
        seen = ref(old)
        gc.collect()
        del old
        now_s[0] = ALL_S
        gc.collect()
        assert seen() is None


def test_the_collector_settings_are_restored_at_the_end() -> None:
    thresholds, callbacks = gc.get_threshold(), [*gc.callbacks]
    with short_collections():
        pass
    assert (gc.get_threshold(), gc.callbacks, gc.get_freeze_count()) == (thresholds, callbacks, 0)


def test_objects_frozen_before_stay_frozen() -> None:
    gc.freeze()
    with short_collections():
        pass
    assert gc.get_freeze_count() > 0
