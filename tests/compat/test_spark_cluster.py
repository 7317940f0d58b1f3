"""Spark beyond one process: `make cluster-demo` as people run it, and workers that have nothing.

No official client is in it; it is here because it takes minutes.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from spark.runner import command
from spark.runner import environment as inherited
from spark.session import prepare_environment, session_settings, with_our_code
from spark.shipping import ZIP_NAME
from tests.compat.patience import wait_until
from tests.spark.ran import write_messages
from tests.spark.store_writer import StoreWriter
from tests.support.bare_python import bare_python
from tests.support.golden import REPOSITORY
from troupemq import cluster_demo
from troupemq.cluster_demo.__main__ import INTERRUPTED, MESSAGE_COUNT
from troupemq.cluster_demo.standalone import spark_home
from troupemq.java import find_java

pytestmark = pytest.mark.slow(seconds=20)

COUNT = 60


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare") / "venv")


def start_demo(directory: Path, python: Path) -> subprocess.Popen[bytes]:
    options = ["--worker-python", str(python)]
    return subprocess.Popen(
        [sys.executable, "-m", cluster_demo.__name__, *options],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def heard(demo: subprocess.Popen[bytes]) -> Iterator[str]:
    """All that it has said, each time that it says more."""
    assert demo.stdout is not None
    told = b""
    while more := os.read(demo.stdout.fileno(), 65_536):
        told += more
        yield told.decode()


def processes() -> Iterator[str]:
    """The command line and the place of everything that runs here."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            yield f"{told} in {(process / 'cwd').readlink()}"
        except OSError:
            continue  # it has ended, or is another user's


def all_is_gone(directory: Path) -> bool:
    """Check that the demonstration's processes and files are gone."""
    if any(str(directory) in told for told in processes()):
        return False
    return not list(directory.glob("troupemq*"))


def test_a_job_outlives_one_of_two_workers(tmp_path: Path, python: Path) -> None:
    told = ""
    with start_demo(tmp_path, python) as demo:
        for said in heard(demo):
            told = said
            for secret in tmp_path.glob("troupemq*/secret"):
                text = secret.read_text().strip()
                assert not [line for line in processes() if text in line]
    assert demo.returncode == 0, told
    assert "killed a worker after" in told
    assert re.search(rf"^messages counted +{MESSAGE_COUNT:,} ", told, re.MULTILINE), told
    assert re.search(r"^workers left +1 +of 2", told, re.MULTILINE), told
    assert f"workers with {python}" in told
    wait_until(lambda: all_is_gone(tmp_path), "everything to be gone")


def test_ctrl_c_leaves_nothing_of_the_cluster(tmp_path: Path, python: Path) -> None:
    told = ""
    with start_demo(tmp_path, python) as demo:
        is_told = False
        for told in heard(demo):
            if "Running the job" in told and not is_told:
                demo.send_signal(signal.SIGINT)
                is_told = True
    assert demo.returncode == INTERRUPTED, told
    wait_until(lambda: all_is_gone(tmp_path), "everything to be gone")


def test_workers_without_our_packages_archive_a_store(tmp_path: Path, python: Path) -> None:
    """Planned and read by our data source, in a Python that has it from the zip only."""
    writer = StoreWriter(tmp_path / "store")
    write_messages(writer, COUNT)
    work = tmp_path / "work"
    work.mkdir()
    arguments = {
        "store": str(writer.root),
        "output": str(tmp_path / "archive"),
        "system_topics": True,
    }
    settings = {
        "spark.master": "local-cluster[1,1,768]",
        "spark.executor.memory": "768m",
        "spark.driver.memory": "512m",
        "spark.pyspark.python": str(python),
    }
    line = command("archive", arguments, work_directory=str(work), settings=settings)
    variables = inherited(os.environ, find_java(os.environ))
    log = tmp_path / "job.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            line,
            cwd=tmp_path,
            env={**variables, "SPARK_HOME": str(spark_home())},
            stdin=subprocess.PIPE,  # its end would be that of the job
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as job,
    ):
        assert job.stdout is not None
        events = [json.loads(line) for line in job.stdout]
    assert events[-1]["event"] == "finished", log.read_text()[-5000:]
    assert events[-1]["report"]["rows"] == COUNT


def test_yarn_gets_code_archive_and_python(tmp_path: Path) -> None:
    """The settings with which Spark would begin to talk to a cluster."""
    (tmp_path / "env.tar.gz").touch()
    archives = {"spark.yarn.dist.archives": "env.tar.gz#environment"}
    settings = submitted({"spark.master": "yarn", **archives}, tmp_path)
    assert settings["spark.yarn.dist.archives"] == f"file:{tmp_path}/env.tar.gz#environment"
    assert settings["spark.yarn.dist.pyFiles"] == f"file://{tmp_path}/{ZIP_NAME}"
    assert settings["spark.yarn.isPython"] == "true"
    assert settings["spark.submit.deployMode"] == "client"


def test_kubernetes_gets_code_image_and_address(tmp_path: Path) -> None:
    given = {
        "spark.master": "k8s://https://127.0.0.1:6443",
        "spark.kubernetes.container.image": "example/spark-py",
        "spark.kubernetes.namespace": "jobs",
        "spark.driver.host": "10.0.0.7",
    }
    settings = submitted(given, tmp_path)
    assert given.items() <= settings.items()
    assert settings["spark.files"] == f"file://{tmp_path}/{ZIP_NAME}"
    assert settings["spark.submit.deployMode"] == "client"


def submitted(given: Mapping[str, str], work: Path) -> dict[str, str]:
    """Return the settings that spark-submit derives from ours; it lists them before it starts."""
    settings = with_our_code(session_settings(given, str(work)), str(work))
    variables = {
        **os.environ,
        "JAVA_HOME": find_java(os.environ),
        "HADOOP_CONF_DIR": str(work),
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(work / "gateway"),
    }
    prepare_environment(settings, variables)
    line = [str(spark_home() / "bin" / "spark-submit"), "--verbose"]
    line += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [*line, "pyspark-shell"],
        cwd=work,
        env=variables,
        stdin=subprocess.DEVNULL,  # its end is that of the process
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    listed = done.stdout.partition("\nSpark config:\n")[2].partition("\nClasspath")[0]
    return dict(re.findall(r"^\((\S+?),(.*)\)$", listed, re.MULTILINE))
