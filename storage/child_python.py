"""The command line and the environment of a Python process that runs a module of ours.

Python looks for modules in the working directory first, which may be a stranger's: a file
json.py there would be run by our processes. `-P` and PYTHONSAFEPATH leave that folder out, of these
processes and of those that they start. Our own packages are found by PYTHONPATH.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE_ROOT = Path(__file__).absolute().parents[__name__.count(".")]
"""The folder of our packages, in a clone, in an installation, and where links to them lie."""

SAFE_PATH = "PYTHONSAFEPATH"
LINKS = "code"
"""In a folder of its own for one process: links to the packages that another Python is given."""

JIT, OWN_JIT = "PYTHON_JIT", "TROUPEMQ_PYTHON_JIT"
"""By which CPython switches its JIT on or off, and what says that this was a server's own doing."""

_PIDFD_OPEN = 434


def child_command(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command line of a process that runs this module."""
    return [python, "-P", "-m", module, *arguments]


def child_environment(
    inherited: Mapping[str, str], root: str | Path = PACKAGE_ROOT
) -> dict[str, str]:
    """Return `inherited` with what the process needs to find our packages, below `root`."""
    path = python_path(inherited.get("PYTHONPATH", ""), root)
    return {**inherited, "PYTHONPATH": path, SAFE_PATH: "1"}


def link_packages(directory: str | Path, packages: Mapping[str, Path]) -> None:
    """Make the folder LINKS in `directory`, for PYTHONPATH; without packages there is none."""
    for name, path in packages.items():
        link = Path(directory, LINKS, name)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(path)


def may_make_code() -> bool:
    """Return whether memory of this process may be executed: a JIT ends the process where not."""
    try:
        mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
    except OSError:
        return False
    return True


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


def python_path(inherited: str, root: str | Path = PACKAGE_ROOT) -> str:
    """PYTHONPATH with our packages in front; an empty entry, the working directory, is left out."""
    left_out = ("", str(root), str(PACKAGE_ROOT))
    return os.pathsep.join(
        [str(root), *(part for part in inherited.split(os.pathsep) if part not in left_out)]
    )
