"""Class-data archive with which Spark's JVM starts faster: `job prepare`."""

import os
import subprocess
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click

from spark.class_data import MODULE, make_class_data
from spark.runner import environment
from storage.child_python import child_command, link_packages
from storage.errors import StoreError
from troupemq.cli.admin.output import Output
from troupemq.cli.options import json_option, leave
from troupemq.exit_codes import exit_code_of
from troupemq.java import find_java
from troupemq.jobs_python import find_jobs_python

Command = TypeVar("Command", bound=Callable[..., Any])


def jobs_python_option(function: Command) -> Command:
    """Add --jobs-python, the counterpart of a broker's setting jobsPython."""
    return click.option(
        "--jobs-python",
        default="",
        metavar="PYTHON",
        help="Run Spark with this Python; it needs pyspark, pyarrow, numpy and crcmod. [default:"
        " this command's Python if it has them, else python3]",
    )(function)


@click.command()
@jobs_python_option
@json_option
def prepare(jobs_python: str, as_json: bool) -> None:
    """Speed up the start of Spark jobs with a class-data archive for this Java and Spark.

    Run it once per machine, and again after an update of Java or Spark. It takes up to a minute
    and 200 MB in the user's cache. Jobs then use the archive automatically.
    """
    try:
        directory = _prepared(jobs_python)
    except StoreError as error:
        leave(f"{error}.", exit_code_of(error))
    Output(as_json=as_json).done(f"Spark's JVM now starts from {directory}.", path=directory)


def _prepared(named: str) -> str:
    """Make the archive and return its path. Raises StoreError."""
    python = find_jobs_python(named)
    java = find_java(os.environ, package=python.java_package)
    if python.is_this:
        return str(make_class_data(environment(os.environ, java)))
    with TemporaryDirectory() as folder:
        link_packages(folder, python.packages)
        done = subprocess.run(
            child_command(MODULE, python=python.path),
            env=environment(os.environ, java, python.code(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
    said = done.stdout.strip()
    if done.returncode:
        raise StoreError(said or f"{python.path} failed to make a class-data archive")
    return said
