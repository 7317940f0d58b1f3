"""The jobs: one file each, with `main(spark, arguments)` that returns a report.

A job is named by its file. Importing one brings in neither Spark nor numpy: its name is taken from
its module object, in processes that never run it. Besides `main` it may have

    check(arguments)   refuses, by a StoreError, what cannot work; called before Spark starts
    NEEDS_SPARK        False: no session is started, and `main` gets None
    needs_spark(arguments)   the same, where it depends on the work there is

A report is what JSON can hold, with at least

    text      lines for people
    rows      how many rows came out
    bytes     of what was written
    output    where it lies, None if nothing was written
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
    """What a job's file holds."""

    main: Main
    check: Callable[[Mapping[str, Any]], object]
    needs_spark: Callable[[Mapping[str, Any]], bool]


def job_names() -> list[str]:
    """Every job there is."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def summary_of(name: str) -> str:
    """The first sentence of a job's docstring; the job itself is not imported for it."""
    source = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def load_job(name: str) -> Job:
    """A job. Raises StoreError if there is none of this name."""
    if name not in job_names():
        raise StoreError(f"there is no job {name}; there is {', '.join(job_names())}")
    module = import_module(f"{__name__}.{name}")
    return Job(
        module.main,
        getattr(module, "check", lambda arguments: None),
        getattr(module, "needs_spark", lambda _: getattr(module, "NEEDS_SPARK", True)),
    )
