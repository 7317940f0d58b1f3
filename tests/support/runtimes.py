"""Python implementations: what only one of them has, or does at another time."""

import gc
import sys

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


def end_views() -> None:
    """End views and maps that nothing refers to any more; CPython has ended them already."""
    if IS_PYPY:
        gc.collect()
