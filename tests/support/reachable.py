"""All objects that an object refers to, directly or not."""

import gc
import sys

import pytest


def reachable_bytes(of: object) -> int:
    """The memory of everything that can be reached from it, but for classes and modules.

    PyPy cannot tell the size of an object: there the test is skipped.
    """
    if sys.implementation.name == "pypy":
        pytest.skip("PyPy cannot tell the size of an object")
    seen, waiting, count = set[int](), [of], 0
    while waiting:
        each = waiting.pop()
        if id(each) not in seen and not isinstance(each, type | type(sys)):
            seen.add(id(each))
            count += sys.getsizeof(each)
            waiting += gc.get_referents(each)
    return count
