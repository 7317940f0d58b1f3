"""`job prepare`: makes a class-data archive, with which Spark's JVM starts faster.

And the option by which commands name the Python of jobs.
"""

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
    """--jobs-python: as the setting jobsPython of a broker."""
    return click.option(
        "--jobs-python",
        default="",
        metavar="PYTHON",
        help="The Python for Spark: one that has pyspark, pyarrow, numpy and crcmod. [default: that"
        " of this command if it has them, else python3]",
    )(function)


@click.command()
@jobs_python_option
@json_option
def prepare(jobs_python: str, as_json: bool) -> None:
    """Makes a class-data archive for this Java and this Spark: sessions start faster then.

    Once on a machine, and again after an update of either. It takes up to a minute, and 200 MB in
    the user's cache; jobs use it by themselves.
    """
    try:
        directory = _prepared(jobs_python)
    except StoreError as error:
        leave(f"{error}.", exit_code_of(error))
    Output(as_json=as_json).done(f"Spark's JVM starts from {directory} now.", path=directory)


def _prepared(named: str) -> str:
    """Return where the archive is. Raises StoreError."""
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
        raise StoreError(said or f"{python.path} made no class-data archive")
    return said
