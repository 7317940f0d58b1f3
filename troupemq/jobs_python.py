"""Choice of the Python that runs Spark jobs.

    jobsPython is set           that Python, and no other
    this Python has Spark       this Python
    else                        `python3` on the PATH

The broker may run on a Python that Spark, pyarrow or numpy do not support. Another Python needs
these three and crcmod. It always gets this broker's code, through a folder of links
(spark/shipping.py), even if it has TroupeMQ installed.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.settings.extras import LIBRARIES, install_command, is_installed
from spark.shipping import folder_of, linked_packages
from storage.child_python import LINKS, PACKAGE_ROOT, SAFE_PATH
from storage.errors import StoreError
from troupemq import runtime
from troupemq.java import PIP_PACKAGE

DEFAULT = "python3"
OLDEST = (3, 11)
ASK_TIMEOUT_S = 30.0
"""Timeout for the answer of another interpreter."""

_EXTRAS = ("spark", "java")
_NEEDED = (*LIBRARIES["spark"], "crcmod")
_SAFE = "import sys; sys.path[:] = filter(None, sys.path)\n"
"""First line of a program for `-c`: prevents imports from the working directory."""


class NoSpark(StoreError):
    """No Python can run Spark jobs; the text says what to do."""


@dataclass(frozen=True)
class JobsPython:
    path: str
    runtime: str
    java_package: Path | None = None
    """Folder of pip's Java for it; None if it is not installed."""

    @property
    def is_this(self) -> bool:
        return self.path == sys.executable

    @property
    def packages(self) -> Mapping[str, Path]:
        """TroupeMQ's package folders to link for it; empty for this process's Python."""
        return {} if self.is_this else linked_packages()

    def code(self, directory: str) -> Path:
        """Return where it finds TroupeMQ's code, with the links in `directory`."""
        return PACKAGE_ROOT if self.is_this else Path(directory, LINKS)


def find_jobs_python(named: str = "") -> JobsPython:
    """Return the interpreter for jobs; `named` is the setting `jobsPython`.

    Starts another interpreter to examine it. Raises NoSpark.
    """
    if named in ("", sys.executable) and is_installed("spark"):
        return JobsPython(sys.executable, str(runtime.this_runtime()), folder_of(PIP_PACKAGE))
    try:
        return _other(named or DEFAULT)
    except NoSpark as error:
        if named:
            raise NoSpark(f"invalid jobsPython {named}: {error}; {_elsewhere()}") from None
        raise NoSpark(
            f"Spark is not installed: {sys.executable} lacks it, and {error}; {spark_cure()}"
        ) from None


def has_spark(named: str = "") -> bool:
    try:
        find_jobs_python(named)
    except NoSpark:
        return False
    return True


def spark_cure() -> str:
    """Return advice on how to get a Python with Spark."""
    if sys.implementation.name != "cpython":
        return _elsewhere()
    return f"{install_command(*_EXTRAS)}, or set jobsPython to a Python that has it"


def _elsewhere() -> str:
    there = install_command(*_EXTRAS, python="PYTHON")
    return f"set jobsPython (in commands: --jobs-python) to a CPython that has it: {there}"


def _other(name: str) -> JobsPython:
    path = shutil.which(name)
    if path is None:
        raise NoSpark(f"{name} is not an executable program")
    found = _asked(path)
    path, language, packages = found["path"], found["language"], found["packages"]
    if tuple(language) < OLDEST:
        raise NoSpark("{} is Python {}.{}, older than 3.11".format(path, *language))
    missing = [each for each in _NEEDED if each not in packages]
    if missing:
        raise NoSpark(f"{path} ({found['runtime']}) lacks {', '.join(missing)}")
    java = packages.get(PIP_PACKAGE)
    return JobsPython(path, found["runtime"], None if java is None else Path(java).parent)


def _asked(path: str) -> dict[str, Any]:
    """Return another interpreter's answer (runtime.py). Raises NoSpark without one."""
    text = _SAFE + Path(runtime.__file__).read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [path, "-c", text, *_NEEDED, PIP_PACKAGE],
            env={**os.environ, SAFE_PATH: "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_TIMEOUT_S,
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        raise NoSpark(f"{path} does not work as a Python interpreter") from None
    return found
