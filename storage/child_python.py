"""The command line and the environment of a Python process that runs a module of ours.

Python looks for modules in the working directory first, which may be a stranger's: a file
json.py there would be run by our processes. `-P` and PYTHONSAFEPATH leave that folder out, of these
processes and of those that they start. Our own packages are found by PYTHONPATH.
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""The folder of our packages, in a clone and in an installation."""

SAFE_PATH = "PYTHONSAFEPATH"
_PIDFD_OPEN = 434


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of a process that runs this module."""
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return `inherited` with what the process needs to find our packages, and nothing else."""
    path = python_path(inherited.get("PYTHONPATH", ""))
    return {**inherited, "PYTHONPATH": path, SAFE_PATH: "1"}


def process_descriptor(process_id: int) -> int:
    """Return a file descriptor that can be read once the process has ended. Raises OSError.

    PyPy has no os.pidfd_open: there the system call is made by its number.
    """
    if sys.implementation.name != "pypy":
        return os.pidfd_open(process_id)
    descriptor: int = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_OPEN, process_id, 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def python_path(inherited: str) -> str:
    """PYTHONPATH with our packages in front; an empty entry, the working directory, is left out."""
    others = [part for part in inherited.split(os.pathsep) if part and part != str(PACKAGE_ROOT)]
    return os.pathsep.join([str(PACKAGE_ROOT), *others])
