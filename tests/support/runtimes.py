"""Python implementations: what only one of them has, or does at another time."""

import gc
import sys
from importlib.util import find_spec
from itertools import accumulate

import pytest

IS_PYPY = sys.implementation.name == "pypy"

NOT_ON_PYPY = {"_tracemalloc", "cyclonedx_py", "kubernetes_validate", "numpy", "playwright"}
NOT_ON_PYPY |= {"pyarrow", "pyspark"}
"""Modules that PyPy cannot have; pyproject.toml requires them on CPython only."""

of_cpython = pytest.mark.skipif(IS_PYPY, reason="about CPython's collector, or its measures")


def needs(package: str) -> None:
    """Skip a test, or the collection of a module, where PyPy cannot have `package`."""
    if IS_PYPY and package in NOT_ON_PYPY:
        pytest.skip(f"{package} is not made for PyPy")


def needs_installed(package: str) -> None:
    """Skip the collection of a module where `package` is missing, as in environments of CI.

    Those of PyPy and of the newest CPython have few of the optional packages.
    """
    parents = accumulate(package.split("."), lambda outer, inner: f"{outer}.{inner}")
    if not all(find_spec(each) for each in parents):
        if sys.implementation.name == "cpython" and sys.version_info < (3, 15):
            pytest.fail(f"{package} is not installed: make test installs it")
        pytest.skip(f"{package} is not installed", allow_module_level=True)


def end_views() -> None:
    """End views and maps that nothing refers to any more; CPython has ended them already."""
    if IS_PYPY:
        gc.collect()
