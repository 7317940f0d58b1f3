"""The environment that a server wants for its interpreter, which reads it before it runs Python.

    CPython has a JIT, off              the process executes itself anew, with PYTHON_JIT=1
    the system forbids to make code     the JIT stays off (MemoryDenyWriteExecute of systemd)
    `pythonJit` is false                the process does so once more, with PYTHON_JIT=0
    PyPy                                the same, with short steps and a small heap of its collector
    the environment has a variable      it holds

The process keeps its number, its command line and its open streams. It does the first before it
imports what a server needs; the setting is known only when its file has been read. The processes
that it starts inherit what it has chosen; jobs, which another Python may run, do not.

By itself PyPy takes half of a large processor cache for new objects, and four times that for a
step of its collector. It lets the heap grow to 1.82 times of what is alive.
"""

import os
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from storage.child_python import JIT, OWN_JIT, may_make_code
from storage.errors import WrongSetting
from troupemq.runtime import JIT_OFF, jit_of_this

Execute = Callable[[str, list[str], Mapping[str, str]], object]


COLLECTOR = {
    "PYPY_GC_NURSERY": "8MB",
    "PYPY_GC_INCREMENT_STEP": "1MB",
    "PYPY_GC_MAJOR_COLLECT": "1.5",
    "PYPY_GC_MIN": "64MB",
}
"""A step of 1 MB takes 0.8 ms, one of 16 MB 12 ms. With 8 MB for new objects PyPy's collector needs
half of the processor time that it needs with 4 MB."""


def wanted_by_server(
    environment: Mapping[str, str], implementation: str = sys.implementation.name
) -> dict[str, str]:
    """Return what a server wants in the environment of its interpreter, and `environment` lacks."""
    if implementation == "pypy":
        return {name: value for name, value in COLLECTOR.items() if name not in environment}
    if environment.get(JIT) or sys.flags.ignore_environment:
        return {}
    return {JIT: "1", OWN_JIT: "1"} if jit_of_this() == JIT_OFF and may_make_code() else {}


def execute_for_server(environment: Mapping[str, str], execute: Execute = os.execve) -> None:
    """Execute this process anew with what a server wants, if its environment lacks anything."""
    if wanted := wanted_by_server(environment):
        with suppress(OSError):  # a server runs without it, too
            _anew({**environment, **wanted}, execute)


def obey_setting(
    wanted: bool,
    settings_file: str | None,
    environment: Mapping[str, str] | None = None,
    execute: Execute = os.execve,
) -> None:
    """Execute this process anew without the JIT that it has given itself, if `wanted` is false.

    Raises WrongSetting where its settings cannot be read once more.
    """
    environment = os.environ if environment is None else environment
    if wanted or OWN_JIT not in environment or environment.get(JIT) == "0":
        return
    if settings_file is not None and not stat.S_ISREG(os.stat(settings_file).st_mode):
        raise WrongSetting(
            f"pythonJit is false in {settings_file}, which can be read only once: set {JIT}=0 in"
            " the environment instead."
        )
    sys.stdout.flush()
    _anew({**environment, JIT: "0"}, execute)


def _anew(environment: Mapping[str, str], execute: Execute) -> None:
    if sys.executable:
        execute(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
