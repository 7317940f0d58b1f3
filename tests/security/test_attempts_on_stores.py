"""Attempts with a store that a stranger has prepared: A50."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from actors.engine.system import StartFailed
from storage.access.acl_files import locked_files, save_acl_file
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.disk import RealDisk
from storage.files.lock_file import StoreLock, lock_owner
from storage.retention.leases import LeaseFiles, leases_dir
from tests.support.brokers import send_command
from tests.support.sockets import Line, serving_broker


def pipe(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/zero")


def endless(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(10**12)


def circle(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path)


FIRST = f"{0:020}"
VICTIM = b"somebody else's"
MODE = 0o644


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (pipe, "config/topics.json"),
        (device, "config/topics.json"),
        (endless, "config/subscriptionGroup.json"),
        (circle, "config/consumerOffset.json"),
        (pipe, f"commitlog/{FIRST}"),
        (device, f"commitlog/{FIRST}"),
        (endless, f"commitlog/{FIRST}"),
        (pipe, f"consumequeue/T/0/{FIRST}"),
        (device, f"consumequeue/T/0/{FIRST}"),
        (pipe, "index/20260101000000000"),
        (pipe, "checkpoint"),
        (pipe, "abort"),
    ],
)
def test_a50_a_hostile_store_is_refused_with_one_sentence(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises((StoreError, StartFailed)) as refused, serving_broker(tmp_path):
        pass
    text = str(refused.value)
    assert path.name in text and text.endswith(".") and "\n" not in text


@pytest.mark.parametrize("name", ["lock", "abort", "checkpoint"])
def test_a50_a_start_writes_through_no_link(tmp_path: Path, name: str) -> None:
    (victim := tmp_path / "victim").write_bytes(VICTIM)
    root = tmp_path / "store"
    root.mkdir()
    (root / name).symlink_to(victim)
    with (
        pytest.raises((StoreError, StartFailed), match="a link is in the way"),
        serving_broker(root),
    ):
        pass
    assert victim.read_bytes() == VICTIM


@pytest.mark.parametrize("name", ["topics.json.tmp", "topics.json.crc.tmp", "topics.json.bak.tmp"])
def test_a50_a_table_is_written_through_no_link(tmp_path: Path, name: str) -> None:
    (victim := tmp_path / "victim").write_bytes(VICTIM)
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{}")
    (config / name).symlink_to(victim)
    with (
        capture_logs() as logs,
        serving_broker(config.parent) as running,
        Line.to(running.ports.main) as line,
    ):
        assert line.ask(send_command()).code == 0
    assert victim.read_bytes() == VICTIM
    assert any("a link is in the way" in str(each) for each in logs)


def test_a50_a_linked_lease_does_not_release_the_store_lock(tmp_path: Path) -> None:
    """Closing a file releases all locks of the process on it."""
    store, disk = StoreConfig(root=str(tmp_path)), RealDisk()
    lock = StoreLock(store, disk)
    lock.acquire()
    try:
        leases = LeaseFiles(disk, store.root)
        leases.make()
        link = Path(leases_dir(store.root), "a.lease")
        link.symlink_to(store.lock_path)
        assert leases.read(0) == [] and not link.is_symlink()
        assert lock_owner(store.lock_path) == os.getpid()
    finally:
        lock.release()


def test_a50_a_linked_folder_stays_a_link(tmp_path: Path) -> None:
    """An operator made the link."""
    config = tmp_path / "store" / "config"
    config.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    config.symlink_to(tmp_path / "elsewhere")
    with serving_broker(config.parent) as running, Line.to(running.ports.main) as line:
        assert line.ask(send_command()).code == 0
    assert config.is_symlink() and (config / "topics.json").exists()


@pytest.mark.parametrize("name", ["lock", "new"])
def test_a50_an_accounts_file_is_not_changed_through_a_link_beside_it(
    tmp_path: Path, name: str
) -> None:
    (victim := tmp_path / "victim").write_bytes(VICTIM)
    victim.chmod(MODE)
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts: []\n")
    (tmp_path / f"plain_acl.yml.{name}").symlink_to(victim)
    with (
        pytest.raises(StoreError, match="a link is in the way"),
        locked_files(RealDisk(), str(path)),
    ):
        save_acl_file(RealDisk(), str(path), b"accounts: []\n")
    assert victim.read_bytes() == VICTIM and victim.stat().st_mode & 0o777 == MODE


@pytest.mark.parametrize(
    "text", ['{"topicConfigTable":' + "[" * 100_000, "{'a':1}" * 10, "\0" * 99]
)
def test_a50_an_invalid_table_is_reported_and_set_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(text)
    with (
        capture_logs() as logs,
        serving_broker(tmp_path) as running,
        Line.to(running.ports.main) as line,
    ):
        assert line.ask(send_command()).code == 0
    assert "config file damaged" in [each["event"] for each in logs]
