"""Leases in the files of a store: held by a lock that ends with its holder, whatever ends that."""

import subprocess
import sys
from pathlib import Path

import pytest

from storage.files.disk import RealDisk
from storage.retention.leases import (
    LEASE_MS_MAX,
    LEASES_MAX,
    FileLease,
    Lease,
    LeaseFiles,
    holder_text,
    leases_dir,
    lowest_in_store,
)
from tests.spark.store_writer import StoreWriter
from troupemq.testing.fake_disk import FakeDisk

ROOT = "/store"
DIRECTORY = leases_dir(ROOT)


class Leased:
    """A store on a disk in memory, with a broker of ours."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self.files = LeaseFiles(self.disk, ROOT)
        self.files.make()

    def acquire(self, lease_id: str = "a", offset: int = 500) -> FileLease:
        lease = FileLease.acquire(self.disk, ROOT, lease_id, "audit", offset)
        assert lease is not None
        return lease

    def read(self, now_ms: int = 1) -> list[tuple[str, int]]:
        return [(lease.id, lease.offset) for lease in self.files.read(now_ms)]


def test_a_lease_is_listed_advanced_and_released() -> None:
    made = Leased()
    lease = made.acquire()
    assert made.files.read(1) == [Lease("a", "audit", 500, LEASE_MS_MAX)]
    lease.move(123_456_789_012)
    made.acquire("b", 7)
    assert made.read() == [("a", 123_456_789_012), ("b", 7)]
    lease.move(5)  # a shorter number leaves nothing of the longer one
    lease.release()
    lease.release()
    assert made.read() == [("b", 7)]
    assert made.disk.listdir(DIRECTORY) == ["b.json"]


def test_a_lease_of_a_dead_process_retains_nothing_and_is_removed() -> None:
    made = Leased()
    made.acquire()
    survivor = made.disk.killed()  # no process holds a lock any more
    assert LeaseFiles(survivor, ROOT).read(1) == []
    assert survivor.listdir(DIRECTORY) == []


def test_a_lease_expires_without_renewal() -> None:
    made = Leased()
    lease = made.acquire()
    assert made.read(LEASE_MS_MAX - 1) == [("a", 500)] and made.read(LEASE_MS_MAX) == []
    made.disk.now_ms = LEASE_MS_MAX
    lease.move(600)
    assert made.read(LEASE_MS_MAX + 1) == [("a", 600)]


def test_a_lease_that_is_being_written_retains_everything() -> None:
    made = Leased()
    made.acquire()
    made.disk.open(f"{DIRECTORY}/a.json").pwrite(b'{"job": 1', 0)
    assert made.read() == [("a", 0)]


def test_a_lease_being_created_is_kept_until_it_expires() -> None:
    made = Leased()
    made.disk.open(f"{DIRECTORY}/.new", create=True)
    assert made.read() == [] and made.disk.listdir(DIRECTORY) == [".new"]
    assert made.read(LEASE_MS_MAX + 1) == [] and made.disk.listdir(DIRECTORY) == []


def test_a_store_without_a_troupemq_broker_grants_no_lease() -> None:
    disk = FakeDisk()
    assert FileLease.acquire(disk, ROOT, "a", "audit", 0) is None
    assert not disk.exists(DIRECTORY)


def test_an_unwritable_lease_directory_is_an_error_and_leaves_no_file() -> None:
    made = Leased()
    for operation in ("open", "pwrite", "rename"):
        made.disk.fail_next(operation, OSError(13, "Permission denied"), below=DIRECTORY)
        with pytest.raises(OSError, match="Permission denied"):
            made.acquire()
        assert made.disk.listdir(DIRECTORY) == []


def test_the_number_of_leases_is_limited() -> None:
    made = Leased()
    held = [made.acquire(f"{number:04}") for number in range(LEASES_MAX)]
    with pytest.raises(OSError, match="1000 leases already"):
        made.acquire("one more")
    held[0].release()
    made.acquire("one more")
    assert len(made.read()) == LEASES_MAX


def test_an_unreadable_lease_is_reported_and_retains_nothing() -> None:
    made = Leased()
    made.acquire("a"), made.acquire("b")
    made.disk.fail_next("open", OSError(13, "Permission denied"), below=f"{DIRECTORY}/a")
    assert made.read() == [("b", 500)]
    assert "a.json: Permission denied" in (made.files.trouble or "")
    assert len(made.read()) == 2 and made.files.trouble is None


HOLDER = """
import sys
from storage.files.disk import RealDisk
from storage.retention.leases import FileLease
lease = FileLease.acquire(RealDisk(), sys.argv[1], "x", "audit", 7)
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_the_kernel_releases_the_lease_of_a_killed_process(tmp_path: Path) -> None:
    root = str(tmp_path)
    files = LeaseFiles(RealDisk(), root)
    files.make()
    program = [sys.executable, "-c", HOLDER, root]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"taken\n"
        assert [lease.offset for lease in files.read(0)] == [7]
        holder.kill()
        holder.wait(20)
    assert files.read(0) == []
    assert list(Path(leases_dir(root)).iterdir()) == []


def test_the_retained_offset_is_that_of_the_first_needed_message(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, log_file_bytes=4000)
    for number in range(30):
        writer.append("Orders", number % 2, bytes(380))
    writer.close()

    def lowest(**queues: int) -> int:
        wanted = {("Orders", int(name[1:])): first for name, first in queues.items()}
        return lowest_in_store(RealDisk(), str(tmp_path), [str(tmp_path / "commitlog")], wanted)

    places = {(each.queue_id, each.queue_offset): each.physical_offset for each in writer.records}
    assert lowest(q0=0, q1=9) == 0
    assert lowest(q0=6, q1=5) == places[1, 5]
    assert lowest(q0=-5, q1=5) == places[0, 0]
    last_file = places[1, 14] - places[1, 14] % 4000
    assert lowest(q0=15, q1=15) == lowest() == lowest(q7=3) == last_file
    assert lowest(q0=15, q1=2) == places[1, 2]


def test_a_lease_holder_is_named_with_its_process() -> None:
    assert holder_text("audit", 12).startswith("audit (process 12 of ")
