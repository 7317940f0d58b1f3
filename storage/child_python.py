"""The command line and the environment of a Python process that runs a module of ours.

Python looks for modules in the working directory first, which may be anybody's folder: a file
json.py there would be run by our processes. `-P` and PYTHONSAFEPATH leave that folder out, of these
processes and of those that they start. Our own packages are found by PYTHONPATH.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""The folder of our packages, in a clone and in an installation."""

SAFE_PATH = "PYTHONSAFEPATH"


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of a process that runs this module."""
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return `inherited` with what the process needs to find our packages, and nothing else."""
    path = python_path(inherited.get("PYTHONPATH", ""))
    return {**inherited, "PYTHONPATH": path, SAFE_PATH: "1"}


def python_path(inherited: str) -> str:
    """PYTHONPATH with our packages in front; an empty entry, the working directory, is left out."""
    others = [part for part in inherited.split(os.pathsep) if part and part != str(PACKAGE_ROOT)]
    return os.pathsep.join([str(PACKAGE_ROOT), *others])
