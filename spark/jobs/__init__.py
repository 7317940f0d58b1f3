"""The jobs: one file each, with `main(spark, arguments)` that returns a report.

A job is named after its file. Importing it loads neither Spark nor numpy, because processes that
never run it take its name from its module object. Besides `main` it may have

    check(arguments)         rejects invalid arguments by a StoreError, before Spark starts
    NEEDS_SPARK              False: no session is started, and `main` gets None
    needs_spark(arguments)   the same, depending on the amount of work

A report consists of JSON values, with at least

    text      lines for people
    rows      number of result rows
    bytes     bytes written
    output    path of the output, None if nothing was written
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from spark.report import Report
from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Main: TypeAlias = "Callable[[SparkSession | None, Mapping[str, Any]], Report]"


@dataclass(frozen=True)
class Job:
    """Functions of a job's module."""

    main: Main
    check: Callable[[Mapping[str, Any]], object]
    needs_spark: Callable[[Mapping[str, Any]], bool]


def job_names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def summary_of(name: str) -> str:
    """Return the first sentence of a job's docstring, without importing the job."""
    source = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def load_job(name: str) -> Job:
    """Return a job. Raises StoreError for an unknown name."""
    if name not in job_names():
        raise StoreError(f"there is no job {name}; there is {', '.join(job_names())}")
    module = import_module(f"{__name__}.{name}")
    return Job(
        module.main,
        getattr(module, "check", lambda arguments: None),
        getattr(module, "needs_spark", lambda _: getattr(module, "NEEDS_SPARK", True)),
    )
