"""Tests of troupemq/start_checks.py: open files, and the clock, before anything is opened."""

import resource

import pytest

from storage.config import StoreConfig
from storage.errors import ClockBehind, TooManyFiles
from tests.support.clock import ManualClock
from tests.support.store import SmallStore
from troupemq.start_checks import FILES_MIN, raise_file_limit, require_clock, require_files

HOUR_MS = 3_600_000


@pytest.fixture
def small() -> SmallStore:
    store = SmallStore()
    store.send(3)
    store.store.close()
    return store


def test_a_start_takes_as_many_open_files_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 5000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: taken.append(limits))
    assert raise_file_limit() == 5000
    assert taken == [(5000, 5000)]


def test_too_few_are_refused_with_both_numbers() -> None:
    with pytest.raises(TooManyFiles, match=f"open 200 files, and a broker needs {FILES_MIN}"):
        require_files(200)
    require_files(FILES_MIN)
    require_files(resource.RLIM_INFINITY)


def test_a_clock_that_is_behind_the_store_is_refused_unless_the_settings_say_otherwise(
    small: SmallStore,
) -> None:
    now = small.store.checkpoint.physic_ms
    assert now
    require_clock(small.config, small.disk, ManualClock(now - small.config.clock_behind_max_ms))
    late = ManualClock(now - HOUR_MS)
    with pytest.raises(ClockBehind, match="set the clock") as caught:
        require_clock(small.config, small.disk, late)
    assert f"raise clockBehindMaxMs to {HOUR_MS + 1} or more" in str(caught.value)
    lenient = StoreConfig(root="/store", clock_behind_max_ms=HOUR_MS)
    require_clock(lenient, small.disk, late)


def test_a_store_that_knows_no_time_is_not_refused(small: SmallStore) -> None:
    require_clock(StoreConfig(root="/other"), small.disk, ManualClock(0))
