"""A class-data archive made and used by a real JVM: a trial, as it takes a minute."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark.class_data import is_whole, make_class_data, with_class_data
from spark.class_data_session import FewRowsReader
from spark.runner import environment
from tests.support.golden import REPOSITORY
from troupemq.java import find_java

TIMEOUT_S = 600.0
CLASSES_MIN = 5000
USES_IT = """
import sys
from spark.session import start_session

options = {"spark.driver.extraJavaOptions": f"-Xlog:class+load:file={sys.argv[1]}/loaded"}
start_session({"spark.master": "local[1]", **options}, sys.argv[1]).range(5).count()
"""


def test_the_training_rows_have_every_type() -> None:
    reader = FewRowsReader()
    (batch,) = reader.read(reader.partitions()[0])
    assert batch.num_rows == 100
    assert {str(field.type) for field in batch.schema} >= {
        "string",
        "binary",
        "bool",
        "date32[day]",
    }


@pytest.mark.slow
@pytest.mark.trial(short=0, long=4, every=4, turn=2)
def test_a_session_loads_classes_from_the_archive(seed: int, tmp_path: Path) -> None:
    given = environment(os.environ, find_java(os.environ))
    given["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    directory = make_class_data(given)
    assert is_whole(directory)
    assert with_class_data({}, given)
    line = [sys.executable, "-c", USES_IT, str(tmp_path)]
    done = subprocess.run(
        line, cwd=REPOSITORY, env=given, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "shared" not in done.stderr + done.stdout
    loaded = (tmp_path / "loaded").read_text()
    assert loaded.count("shared objects file (top)") > CLASSES_MIN
