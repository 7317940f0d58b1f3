"""Tests of troupemq/start_checks.py: libraries, open files, the clock, before all is opened."""

import resource
from pathlib import Path

import pytest

from actors.config import parse_broker_config, parse_namesrv_config
from actors.settings.extras import LIBRARIES
from storage.config import StoreConfig
from storage.errors import ClockBehind, TooManyFiles, WrongSetting
from storage.recovery.checkpoint import require_log
from tests.compat.servers import SMALL_FILES
from tests.support.clock import ManualClock
from tests.support.store import SmallStore
from troupemq.doctor import REFUSED, examine_broker
from troupemq.exit_codes import exit_code_of
from troupemq.servers import Servers
from troupemq.start_checks import (
    FILES_MIN,
    raise_file_limit,
    require_clock,
    require_extras,
    require_files,
)

HOUR_MS = 3_600_000


@pytest.fixture
def small() -> SmallStore:
    store = SmallStore()
    store.send(3)
    store.store.close()
    return store


def test_a_start_raises_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 5000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: taken.append(limits))
    assert raise_file_limit() == 5000
    assert taken == [(5000, 5000)]


def test_too_few_open_files_are_refused_with_both_numbers() -> None:
    with pytest.raises(
        TooManyFiles, match=f"open files is 200, but a broker needs at least {FILES_MIN}"
    ):
        require_files(200)
    require_files(FILES_MIN)
    require_files(resource.RLIM_INFINITY)


@pytest.mark.parametrize(
    ("settings", "extra"),
    [
        ({"metricsExporterType": "PROM"}, "metrics"),
        ({"otelTraces": "true"}, "otel"),
        ({"consolePort": "8088", "namesrvAddr": "127.0.0.1:9876"}, "console"),
    ],
)
def test_a_setting_whose_library_is_missing_refuses_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], extra: str
) -> None:
    """A broker without the library served without metrics, and one log line said so."""
    here = {"listenPort": "0", "storePathRootDir": str(tmp_path / "store"), **settings}
    broker, store, _ = parse_broker_config("", {**here, **SMALL_FILES})
    require_extras(broker)
    monkeypatch.setitem(LIBRARIES, extra, ("no_such_library",))
    with pytest.raises(WrongSetting) as refused:
        Servers(pytest.fail).start_broker(broker, store)
    sentence = str(refused.value)
    key = next(iter(settings))
    assert sentence.startswith(key) and sentence.count(" -m pip install ") == 1
    assert exit_code_of(refused.value) == 10 and not (tmp_path / "store").exists()
    doctors = [each for each in examine_broker(broker, store) if each.verdict == REFUSED]
    assert [each.cure for each in doctors] == [sentence]
    if extra != "otel":
        with pytest.raises(WrongSetting, match=f"^{key}"):
            Servers(pytest.fail).start_namesrv(parse_namesrv_config("", settings)[0])


def test_store_without_its_commit_log_is_refused(small: SmallStore) -> None:
    """A start gave the queue offsets of its messages to new ones: groups skipped them later."""
    require_log(small.config, small.disk)
    require_log(StoreConfig(root="/other"), small.disk)
    elsewhere = StoreConfig(root="/store", commit_log_dir="/unmounted")
    for _ in range(2):  # without the folder, and with an empty one
        with pytest.raises(WrongSetting, match="mount its disk or correct storePathCommitLog"):
            require_log(elsewhere, small.disk)
        small.disk.make_dirs("/unmounted")
    small.disk.unlink("/store/checkpoint")
    require_log(elsewhere, small.disk)


def test_doctor_and_start_refuse_a_store_without_its_commit_log(tmp_path: Path) -> None:
    broker, store, _ = parse_broker_config(
        f"storePathRootDir={tmp_path}\nstorePathCommitLog={tmp_path}/unmounted\nlistenPort=0"
    )
    (tmp_path / "checkpoint").write_bytes((1_700_000_000_000).to_bytes(8, "big") * 3)
    with pytest.raises(WrongSetting, match=f"^the store {tmp_path} has messages") as refused:
        Servers(pytest.fail).start_broker(broker, store)
    doctors = [each for each in examine_broker(broker, store) if each.verdict == REFUSED]
    assert [each.cure for each in doctors] == [str(refused.value)]
    assert exit_code_of(refused.value) == 10


def test_a_clock_behind_the_store_is_refused_unless_a_setting_allows_it(
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


def test_a_store_without_a_time_is_not_refused(small: SmallStore) -> None:
    require_clock(StoreConfig(root="/other"), small.disk, ManualClock(0))
