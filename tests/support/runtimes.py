"""Python implementations: what only one of them has, or does at another time."""

import gc
import sys

import pytest

IS_PYPY = sys.implementation.name == "pypy"

NOT_ON_PYPY = (
    {"_tracemalloc", "kubernetes_validate", "numpy", "playwright", "pyarrow", "pyspark"}
    if IS_PYPY
    else set()
)
"""What tests import and PyPy cannot have; pyproject.toml asks for it on CPython only."""

of_cpython = pytest.mark.skipif(IS_PYPY, reason="about CPython's collector, or its measures")


def end_views() -> None:
    """End views and maps that nothing refers to any more; CPython has ended them already."""
    if IS_PYPY:
        gc.collect()
