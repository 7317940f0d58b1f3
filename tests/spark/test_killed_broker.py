"""A broker killed while its scheduled job runs: nothing remains, and the next start continues."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import pytest

from actors.jobs.timetable import Occasions, TimetableLine, timetable_json
from protocol.bodies_own import JobRun, Jobs
from protocol.codes import RequestCode
from spark.archive.files import Archive
from storage.files.disk import RealDisk
from storage.tables.json_config import save
from tests.compat.patience import wait_until
from tests.spark.probe import QUICK
from tests.spark.store_writer import StoreWriter
from tests.spark.test_killed_job import (
    BODY_BYTES,
    MESSAGES,
    RANGE_BYTES,
    SHARE_MAX,
    are_gone,
    processes_of,
    wait_until_writing,
)
from tests.support.golden import REPOSITORY
from troupemq.client.admin import Admin

pytestmark = pytest.mark.slow(seconds=40)

WAIT_S = 180
LOG_FILE_BYTES = 8 << 20
DUE_MS = 1_795_132_800_000
CONF = """
[nightly]
job = archive
cron = 0 0 1 1 *
memory = 512m
master = local[2]
argument.range_bytes = {range_bytes}
"""
FEW_TASKS = 8 << 20


@contextmanager
def broker(root: Path) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """Yield the broker's process and address; kill it at the end."""
    settings = {
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "storePathRootDir": str(root / "store"),
        "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
        "mappedFileSizeConsumeQueue": "60000",
    }
    ready = root / "ready"
    ready.unlink(missing_ok=True)
    line = [sys.executable, "-m", "troupemq", "broker", "--jobs", str(root / "jobs.conf")]
    line += ["--ready-file", str(ready)]
    for name, value in settings.items():
        line += ["-s", f"{name}={value}"]
    with (root / "broker.log").open("ab") as log:
        process = subprocess.Popen(
            line,
            cwd=REPOSITORY,
            env={**os.environ, "JDK_JAVA_OPTIONS": QUICK["spark.driver.extraJavaOptions"]},
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: ready.exists() and ready.stat().st_size > 0, "a broker", WAIT_S)
        ports = json.loads(ready.read_text())
        yield process, f"127.0.0.1:{ports['broker']}"
    finally:
        process.kill()
        process.wait()


def run_of(session: Admin, address: str) -> JobRun:
    """Return the only run that the broker knows."""
    (run,) = session.read(Jobs, address, RequestCode.GET_JOBS, timeout_ms=30_000).runs
    return run


@pytest.mark.trial(short=0, long=30, every=3, turn=2)
def test_a_killed_broker_leaves_no_process_and_no_partial_archive(
    tmp_path: Path, seed: int
) -> None:
    writer = StoreWriter(tmp_path / "store", log_file_bytes=LOG_FILE_BYTES, queue_file_bytes=60_000)
    for number in range(MESSAGES):
        writer.append("t", 0, number.to_bytes(BODY_BYTES, "big"))
    writer.close()
    (tmp_path / "jobs.conf").write_text(CONF.format(range_bytes=RANGE_BYTES))
    line = TimetableLine(Occasions("0 0 1 1 *", ZoneInfo("UTC")), DUE_MS)
    line.begin(DUE_MS, DUE_MS)  # as if an earlier start had been interrupted
    state = json.dumps(timetable_json({"nightly": line}))
    save(RealDisk(), str(tmp_path / "store" / "troupemq" / "jobs.json"), state)
    archive = Archive(str(tmp_path / "archive"))
    with broker(tmp_path) as (process, address), Admin("127.0.0.1:1") as session:
        wait_until_writing(archive, Random(seed).random() * SHARE_MAX)
        run = run_of(session, address)
        assert (run.entry, run.state) == ("nightly", "running")
        processes = processes_of(run.run)
        assert "java" in processes.values()
        process.kill()
        process.wait()
        wait_until(lambda: are_gone(run.run, processes), "no process left", WAIT_S)
    assert archive.runs() == []
    (tmp_path / "jobs.conf").write_text(CONF.format(range_bytes=FEW_TASKS))
    with broker(tmp_path) as (_, address), Admin("127.0.0.1:1") as session:
        wait_until(lambda: run_of(session, address).state == "finished", "its end", WAIT_S)
        found = session.read(Jobs, address, RequestCode.GET_JOBS)
        assert found.schedule[0].due_ms == 0
    left = [path.name for path in (tmp_path / "store" / "jobs").iterdir() if path.is_dir()]
    assert left == []
    assert archive.runs() == [1]
    archive.check(1)
    (queue,) = archive.manifest(1).queues
    assert (queue.first, queue.last, queue.rows) == (0, MESSAGES - 1, MESSAGES)
    assert sorted(os.listdir(tmp_path / "archive")) == ["_lock", "run=00000001"]
