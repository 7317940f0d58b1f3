"""A SparkSession for one job: defaults, then conf/spark.conf, then the settings of the run.

The file has Spark's own names, one `name = value` per line; # begins a comment.
"""

import os
import shlex
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark.class_data import with_class_data
from spark.masters import (
    DEPLOY_MODE,
    DRIVER_HOST,
    MASTER,
    PY_FILES,
    PYTHON,
    check_settings,
    is_local,
    is_on_this_machine,
    set_private_apart,
    write_private,
)
from spark.shipping import write_zip
from storage.child_python import SAFE_PATH, python_path
from storage.errors import StoreError, reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
EXTRA_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

DEFAULTS: dict[str, str] = {
    MASTER: "local[*]",
    "spark.app.name": "troupemq",
    # Spark refuses to start below 450 MiB.
    "spark.driver.memory": "1g",
    # The UI would listen on all interfaces, whatever the driver's address is.
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    # A reader with pushFilters fails without it.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Maximum open files of a task that writes several topics or days; beyond it, the task sorts.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    "spark.sql.parquet.compression.codec": "zstd",
    # Spark's default (INT96) has neither a time zone nor statistics for filters.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Off by default: a flipped bit in a page would give a wrong answer, not an error.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Python workers on other machines must not import from their working directory either.
    f"spark.executorEnv.{SAFE_PATH}": "1",
}


def read_settings(path: str | None) -> dict[str, str]:
    """Return the settings of a file; without a path, an empty dictionary.

    Raises StoreError for an invalid line.
    """
    settings: dict[str, str] = {}
    if path is None:
        return settings
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {reason_of(error)}") from error
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise StoreError(f"{path}, line {number}: expected `name = value`")
        settings[name.strip()] = value.strip()
    return settings


def session_settings(overrides: Mapping[str, str], work_directory: str) -> dict[str, str]:
    """Return all settings of a run that keeps its temporary files below `work_directory`."""
    settings = {**DEFAULTS, **overrides}
    settings.setdefault("spark.local.dir", work_directory)
    settings.setdefault("spark.sql.warehouse.dir", str(Path(work_directory) / "warehouse"))
    if is_on_this_machine(settings):
        settings.setdefault(DRIVER_HOST, "127.0.0.1")
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
    options = settings.get(EXTRA_JAVA_OPTIONS, "")
    scratch = f"-Djava.io.tmpdir={work_directory}"
    if " " in scratch:
        scratch = f'"{scratch}"'  # Spark splits its options as a shell would
    settings[EXTRA_JAVA_OPTIONS] = f"{options} {scratch}".strip()
    return settings


def prepare_environment(settings: Mapping[str, str], environment: MutableMapping[str, str]) -> None:
    """Set the environment of the JVM and the Python workers; call it before the session starts."""
    environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    environment["PYSPARK_PYTHON"] = settings.get(PYTHON, sys.executable)
    environment["PYTHONPATH"] = python_path(environment.get("PYTHONPATH", ""))
    environment[SAFE_PATH] = "1"
    if is_on_this_machine(settings):
        # Only this binds every port to loopback; driver.host and bindAddress miss some.
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"


def start_session(overrides: Mapping[str, str], work_directory: str) -> "SparkSession":
    """Start the JVM and return its session.

    Takes 4 to 8 s, and more memory than the broker. Raises StoreError.
    """
    from pyspark.sql import SparkSession

    settings = with_class_data(session_settings(overrides, work_directory), os.environ)
    check_settings(settings, os.environ)
    prepare_environment(settings, os.environ)
    if not is_local(settings):
        settings = with_our_code(settings, work_directory)
    shown, private = set_private_apart(settings)
    if private:
        file = shlex.quote(write_private(private, work_directory))
        others = os.environ.get(SUBMIT_ARGS, "pyspark-shell")
        os.environ[SUBMIT_ARGS] = f"--load-spark-defaults --properties-file {file} {others}"
    return SparkSession.builder.config(map=dict(shown)).getOrCreate()


def with_our_code(settings: Mapping[str, str], work_directory: str) -> dict[str, str]:
    """Add a zip of this code for workers that do not have it. Raises StoreError."""
    files = [name for name in settings.get(PY_FILES, "").split(",") if name]
    shipped = ",".join([*files, write_zip(work_directory)])
    return {**settings, PY_FILES: shipped, DEPLOY_MODE: "client"}
