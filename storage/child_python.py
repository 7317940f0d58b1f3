"""Command line and environment of a Python process that runs a TroupeMQ module.

Python searches the working directory first: a foreign json.py there would run in the process. `-P`
and PYTHONSAFEPATH leave that folder out, in the process and in those it starts. PYTHONPATH then
leads to the TroupeMQ packages.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE_ROOT = Path(__file__).absolute().parents[__name__.count(".")]
"""Folder of the TroupeMQ packages: in a clone, in an installation, or behind links."""

SAFE_PATH = "PYTHONSAFEPATH"
LINKS = "code"
"""Subfolder of a process's own folder, with links to the packages for another Python."""

JIT, OWN_JIT = "PYTHON_JIT", "TROUPEMQ_PYTHON_JIT"
"""The switch of CPython's JIT, and the mark that the server set it itself."""

_PIDFD_OPEN = 434


def child_command(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    return [python, "-P", "-m", module, *arguments]


def child_environment(
    inherited: Mapping[str, str], root: str | Path = PACKAGE_ROOT
) -> dict[str, str]:
    """Return `inherited` with the variables that lead to the TroupeMQ packages below `root`."""
    path = python_path(inherited.get("PYTHONPATH", ""), root)
    return {**inherited, "PYTHONPATH": path, SAFE_PATH: "1"}


def link_packages(directory: str | Path, packages: Mapping[str, Path]) -> None:
    """Create the folder LINKS in `directory`, for PYTHONPATH; without packages, create nothing."""
    for name, path in packages.items():
        link = Path(directory, LINKS, name)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(path)


def may_make_code() -> bool:
    """Return whether this process may execute its memory; else a JIT ends the process."""
    try:
        mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
    except OSError:
        return False
    return True


def process_descriptor(process_id: int) -> int:
    """Return a file descriptor that becomes readable when the process ends. Raise OSError.

    PyPy has no os.pidfd_open, so there the system call is made by its number.
    """
    if sys.implementation.name != "pypy":
        return os.pidfd_open(process_id)
    descriptor: int = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_OPEN, process_id, 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def python_path(inherited: str, root: str | Path = PACKAGE_ROOT) -> str:
    """Return PYTHONPATH with `root` in front, without empty entries (the working directory)."""
    left_out = ("", str(root), str(PACKAGE_ROOT))
    return os.pathsep.join(
        [str(root), *(part for part in inherited.split(os.pathsep) if part not in left_out)]
    )
