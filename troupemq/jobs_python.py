"""The Python that runs Spark jobs: this one where Spark is installed for it, else another.

    jobsPython is set        that one, and no other
    this one has Spark       this one
    else                     `python3` of the PATH

A broker's own Python may be one that Spark, pyarrow or numpy are not made for. Another one needs
these three and crcmod. It gets the broker's own code by a folder of links (spark/shipping.py),
whatever it has of ours.
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
"""An interpreter that has not said its name by then is of no use."""

_EXTRAS = ("spark", "java")
_NEEDED = (*LIBRARIES["spark"], "crcmod")
_SAFE = "import sys; sys.path[:] = filter(None, sys.path)\n"
"""The first line of a program in an argument: nothing is imported from the working directory."""


class NoSpark(StoreError):
    """No Python is known that can run Spark jobs; the text says what to do."""


@dataclass(frozen=True)
class JobsPython:
    """An interpreter that has what Spark jobs need."""

    path: str
    runtime: str
    java_package: Path | None = None
    """The folder of the Java that pip has installed for it; None: it has not."""

    @property
    def is_this(self) -> bool:
        """Whether it is that of this process."""
        return self.path == sys.executable

    @property
    def packages(self) -> Mapping[str, Path]:
        """The folders of ours that it has to be given; none for that of this process."""
        return {} if self.is_this else linked_packages()

    def code(self, directory: str) -> Path:
        """Return where it finds our code, if `directory` gets the links to these."""
        return PACKAGE_ROOT if self.is_this else Path(directory, LINKS)


def find_jobs_python(named: str = "") -> JobsPython:
    """Return the interpreter for jobs; `named` is the setting `jobsPython`, empty: the default.

    Starts another one to look at it, which takes a moment. Raises NoSpark with one sentence.
    """
    if named in ("", sys.executable) and is_installed("spark"):
        return JobsPython(sys.executable, str(runtime.this_runtime()), folder_of(PIP_PACKAGE))
    try:
        return _other(named or DEFAULT)
    except NoSpark as error:
        if named:
            raise NoSpark(f"jobsPython = {named} cannot be: {error}; {_elsewhere()}") from None
        raise NoSpark(
            f"Spark is not installed: {sys.executable} lacks it, and {error}; {spark_cure()}"
        ) from None


def has_spark(named: str = "") -> bool:
    """Return whether jobs can run here."""
    try:
        find_jobs_python(named)
    except NoSpark:
        return False
    return True


def spark_cure() -> str:
    """Return what to do where no Python has Spark."""
    if sys.implementation.name != "cpython":
        return _elsewhere()
    return f"{install_command(*_EXTRAS)}, or name a Python that has it as jobsPython"


def _elsewhere() -> str:
    there = install_command(*_EXTRAS, python="PYTHON")
    return f"name a CPython as jobsPython (--jobs-python of a command) that has it: {there}"


def _other(name: str) -> JobsPython:
    path = shutil.which(name)
    if path is None:
        raise NoSpark(f"{name} is no program that can be run")
    found = _asked(path)
    path, language, packages = found["path"], found["language"], found["packages"]
    if tuple(language) < OLDEST:
        raise NoSpark("{} is Python {}.{}, and 3.11 is the oldest that can".format(path, *language))
    missing = [each for each in _NEEDED if each not in packages]
    if missing:
        raise NoSpark(f"{path} ({found['runtime']}) lacks {', '.join(missing)}")
    java = packages.get(PIP_PACKAGE)
    return JobsPython(path, found["runtime"], None if java is None else Path(java).parent)


def _asked(path: str) -> dict[str, Any]:
    """Return what another interpreter says of itself. Raises NoSpark if it says nothing."""
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
        raise NoSpark(f"{path} does not run as Python {OLDEST[0]}.{OLDEST[1]} does") from None
    return found
