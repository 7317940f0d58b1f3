"""Modules that importing the data source loads into a task process."""

import os
import subprocess
import sys

import pytest

from spark.source import data_source as source
from storage.errors import StoreError
from tests.support.golden import REPOSITORY

WHAT_A_WORKER_HAS = {"numpy", "pyarrow", "pyspark", "py4j"}


@pytest.mark.slow
def test_a_worker_needs_nothing_but_pyarrow_and_numpy() -> None:
    """pyspark and py4j are what Spark itself brings; a SQL92 expression needs lark, too.

    orjson is used where it is there (protocol/standard_json.py), so it is made not to be.
    """
    program = (
        "import sys; before = {*sys.modules}; sys.modules['orjson'] = None;"
        f"import {source.__name__};"
        "new = {name for name, each in sys.modules.items() if each and name not in before};"
        "there = {name.partition('.')[0] for name in new} - sys.stdlib_module_names;"
        "print(*(name for name in there if not name.startswith(('_', 'cython_runtime'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    ours = {"protocol", "storage", "remoting", "spark"}
    assert set(done.stdout.split()) - WHAT_A_WORKER_HAS == ours


@pytest.mark.parametrize("is_planning", [True, False])
def test_spark_shows_a_wrong_option_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, is_planning: bool
) -> None:
    """A misspelled option was twenty lines, the last of them " SQLSTATE: 38000"."""
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    if is_planning:
        monkeypatch.setitem(sys.modules, "pyspark.sql.worker.create_data_source", sys)
    with pytest.raises(StoreError, match=r"no option topc: did you mean topic\?"):
        source.TroupeMQ({"store": "/s", "topc": "T"}).schema()
    assert os.environ.get("SPARK_HIDE_TRACEBACK") == ("1" if is_planning else None)
