"""What importing the data source brings into a process that runs tasks."""

import subprocess
import sys

import pytest

from spark.source import data_source as source
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
