"""Settings of PyPy's garbage collector for a server: short steps and a small heap.

PyPy reads them from the environment before it runs any Python, so that a server executes itself
once more. By itself PyPy takes half of a large processor cache for new objects, and four times that
for a step. It lets the heap grow to 1.82 times of what is alive.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

SETTINGS = {
    "PYPY_GC_NURSERY": "8MB",
    "PYPY_GC_INCREMENT_STEP": "1MB",
    "PYPY_GC_MAJOR_COLLECT": "1.5",
    "PYPY_GC_MIN": "64MB",
}
"""A step of 1 MB takes 0.8 ms, one of 16 MB 12 ms. With 8 MB for new objects the collector needs
half of the processor time that it needs with 4 MB."""


def server_environment(
    environment: Mapping[str, str], implementation: str = sys.implementation.name
) -> dict[str, str]:
    """Return what a server wants in the environment of its interpreter, and `environment` lacks."""
    if implementation != "pypy":
        return {}
    return {name: value for name, value in SETTINGS.items() if name not in environment}


def execute_with(
    wanted: Mapping[str, str],
    environment: Mapping[str, str],
    execute: Callable[[str, list[str], Mapping[str, str]], object] = os.execve,
) -> None:
    """Execute this process once more, with `wanted` in its environment; not if that is nothing."""
    if wanted and sys.executable:
        with suppress(OSError):  # a server runs without it, too
            execute(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environment, **wanted})
