"""Spark cluster processes: their end with all children, their secret, and failing pages."""

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runtimes import needs
from troupemq.cluster_demo.standalone import (
    ClusterFailed,
    SparkCluster,
    answer,
    end_group,
    free_ports,
    spark_home,
    wait_or_kill,
    write_secretly,
)

STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
signal.pause()
"""


@pytest.mark.slow
def test_a_process_that_does_not_end_is_killed_with_its_children() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        end_group(process, signal.SIGTERM)
        wait_or_kill(process, timeout_s=0.1)
        assert process.returncode == -signal.SIGKILL
        assert process.stdout.read() == b"", "closed by all its owners"
        end_group(process, signal.SIGKILL)  # the process has ended
    assert child > 0


def test_a_secret_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secretly(path, "text")
    assert path.read_text() == "text"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_free_ports_are_different_ones() -> None:
    assert len(set(free_ports(5))) == 5


def test_a_page_that_does_not_answer_is_ignored() -> None:
    (port,) = free_ports(1)
    assert answer(f"http://127.0.0.1:{port}/json/") is None


def test_no_process_starts_after_a_stop(tmp_path: Path) -> None:
    needs("pyspark")
    cluster = SparkCluster(tmp_path, "java", "secret", {"PYTHONPATH": "x"})
    cluster.stop()
    with pytest.raises(ClusterFailed, match="stopped during its start"):
        cluster.start_master()
    assert stat.S_IMODE((tmp_path / "cluster.conf").stat().st_mode) == 0o600


def test_spark_home_is_the_installed_package() -> None:
    needs("pyspark")
    assert (spark_home() / "bin" / "spark-class").is_file()
