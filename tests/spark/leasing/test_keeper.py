"""Keepers of leases: processes that end with Spark's process, or at a timeout."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

from spark.leasing.keeper import start_keeper
from spark.leasing.store_lease import StoreLease
from spark.source.leases import PlannedRead, StreamLease
from spark.source.offsets import Bounds
from spark.source.options import parse_options
from spark.source.origin import StoreOrigin
from storage.files.disk import RealDisk
from storage.retention.leases import Lease, LeaseFiles, leases_dir
from tests.spark.store_writer import StoreWriter

SOON_S = 30


@contextmanager
def a_process() -> Iterator["subprocess.Popen[bytes]"]:
    """One that ends when it is told to."""
    program = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def soon(is_so: Callable[[], bool]) -> bool:
    """Whether it comes to be so."""
    until_s = monotonic() + SOON_S
    while not is_so() and monotonic() < until_s:
        Event().wait(0.02)
    return is_so()


@pytest.fixture
def store(tmp_path: Path) -> StoreWriter:
    """Fifteen messages in each of two queues, ten in a file of the log; a broker of ours."""
    writer = StoreWriter(tmp_path / "store", log_file_bytes=4000)
    for number in range(30):
        writer.append("Orders", number % 2, bytes(300))
    writer.close()
    LeaseFiles(RealDisk(), str(writer.root)).make()
    return writer


def leases(store: StoreWriter) -> list[Lease]:
    return LeaseFiles(RealDisk(), str(store.root)).read(0)


def files(store: StoreWriter) -> list[Path]:
    return list(Path(leases_dir(str(store.root))).iterdir())


def wanted(store: StoreWriter, timeout_ms: int) -> dict[str, object]:
    return {
        "store": str(store.root),
        "commit_log": None,
        "job": "a read",
        "offset": 7,
        "timeout_ms": timeout_ms,
    }


@pytest.mark.slow
def test_a_keeper_holds_its_lease_until_the_process_it_watches_is_killed(
    store: StoreWriter,
) -> None:
    with a_process() as java:
        assert start_keeper(wanted(store, 60_000), parent=java.pid)
        assert [(lease.job, lease.offset) for lease in leases(store)] == [("a read", 7)]
        java.kill()
        java.wait(SOON_S)
        assert soon(lambda: files(store) == [])


@pytest.mark.slow
def test_a_keeper_ends_at_its_timeout(store: StoreWriter) -> None:
    with a_process() as java:
        assert start_keeper(wanted(store, 1), parent=java.pid)
        assert soon(lambda: files(store) == [])
        assert java.poll() is None


@pytest.mark.slow
def test_without_a_lease_directory_there_is_no_keeper(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "official").close()
    with a_process() as java:
        assert not start_keeper(wanted(writer, 60_000), parent=java.pid)
    assert not StoreLease(str(writer.root), None, "a read").is_held


@pytest.mark.slow
def test_a_plan_leases_only_the_files_it_needs(
    store: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse_options({"store": str(store.root), "topic": "Orders"})
    with a_process() as java:
        monkeypatch.setattr("os.getppid", lambda: java.pid)
        plan = PlannedRead(options, is_wanted=True)
        plan.hand_over(
            StoreOrigin(options), {("Orders", 0): Bounds(9, 15), ("Orders", 1): Bounds(3, 3)}
        )
        plan.release()
        (place,) = (
            each.physical_offset
            for each in store.records
            if (each.queue_id, each.queue_offset) == (0, 9)
        )
        (lease,) = leases(store)
        assert lease.offset == place
        assert lease.job.startswith(f"a read of Orders (process {java.pid} of ")
        java.kill()
        assert soon(lambda: files(store) == [])


def test_with_a_timeout_of_zero_nothing_is_leased(store: StoreWriter) -> None:
    options = parse_options({"store": str(store.root), "leaseTimeoutMs": "0"})
    plan = PlannedRead(options, is_wanted=True)
    assert files(store) == []
    plan.hand_over(StoreOrigin(options), {("Orders", 0): Bounds(0, 15)})
    stream = StreamLease(options, is_wanted=True)
    stream.begin(StoreOrigin(options), {("Orders", 0): 0})
    assert files(store) == []


STREAM = """
import sys
from spark.source.leases import StreamLease
from spark.source.options import parse_options
from spark.source.origin import StoreOrigin
options = parse_options({"store": sys.argv[1]})
lease = StreamLease(options, is_wanted=True)
lease.begin(StoreOrigin(options), {("Orders", 0): 0, ("Orders", 1): 4})
print("begun", flush=True)
sys.stdin.readline()
lease.move({("Orders", 0): 6, ("Orders", 1): 15})
print("moved", flush=True)
sys.stdin.readline()
lease.release()
"""


@pytest.mark.slow
def test_a_streams_lease_moves_with_its_commits_and_ends_with_it(store: StoreWriter) -> None:
    places = {(each.queue_id, each.queue_offset): each.physical_offset for each in store.records}
    program = [sys.executable, "-c", STREAM, str(store.root)]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stream:
        assert stream.stdin is not None and stream.stdout is not None
        assert stream.stdout.readline() == "begun\n"
        assert [lease.offset for lease in leases(store)] == [0]
        stream.stdin.write("\n")
        stream.stdin.flush()
        assert stream.stdout.readline() == "moved\n"
        assert [lease.offset for lease in leases(store)] == [places[0, 6]]
        stream.stdin.write("\n")
        stream.stdin.flush()
        assert stream.wait(SOON_S) == 0
    assert files(store) == []
