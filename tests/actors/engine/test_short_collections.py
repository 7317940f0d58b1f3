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
def test_what_survives_a_collection_is_not_looked_at_by_the_next_ones() -> None:
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


def test_a_cycle_that_dies_young_goes_with_the_next_collection() -> None:
    with short_collections():
        gc.collect()
        seen = ref(Knot())
        gc.collect()
        assert seen() is None


@pytest.mark.heavy
def test_after_some_minutes_all_is_looked_at() -> None:
    now_s = [0.0]
    with short_collections(lambda: now_s[0]):
        old = Knot()
        seen = ref(old)
        gc.collect()
        del old
        now_s[0] = ALL_S
        gc.collect()
        assert seen() is None


def test_everything_is_as_before_in_the_end() -> None:
    thresholds, callbacks = gc.get_threshold(), [*gc.callbacks]
    with short_collections():
        pass
    assert (gc.get_threshold(), gc.callbacks, gc.get_freeze_count()) == (thresholds, callbacks, 0)


def test_what_was_set_aside_before_stays_so() -> None:
    gc.freeze()
    with short_collections():
        pass
    assert gc.get_freeze_count() > 0
