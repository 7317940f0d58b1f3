"""Environment variables that a server sets for its interpreter by executing itself again.

The interpreter reads these variables before it runs any Python code.

    CPython with its JIT off             exec with PYTHON_JIT=1
    the system forbids making code       none: the JIT stays off (systemd's MemoryDenyWriteExecute)
    `pythonJit` is false                 exec again with PYTHON_JIT=0
    PyPy                                 exec with short collector steps and a small heap
    the environment has the variable     none: the variable stays as it is

The process keeps its id, command line and open streams. The first exec comes before the imports of
a server. The setting is known only later, when its file has been read. Child processes inherit the
variables, except jobs, which may run on another Python.

PyPy's defaults: half of a large processor cache for new objects, four times that for a collector
step, and a heap of up to 1.82 times the live objects.
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
"""Variables of PyPy's collector.

A step of 1 MB takes 0.8 ms, one of 16 MB 12 ms. With 8 MB for new objects the collector needs half
of the processor time that it needs with 4 MB.
"""


def wanted_by_server(
    environment: Mapping[str, str], implementation: str = sys.implementation.name
) -> dict[str, str]:
    """Return the variables for a server's interpreter that `environment` lacks."""
    if implementation == "pypy":
        return {name: value for name, value in COLLECTOR.items() if name not in environment}
    if environment.get(JIT) or sys.flags.ignore_environment:
        return {}
    return {JIT: "1", OWN_JIT: "1"} if jit_of_this() == JIT_OFF and may_make_code() else {}


def execute_for_server(environment: Mapping[str, str], execute: Execute = os.execve) -> None:
    """Execute this process again with a server's variables, if its environment lacks any."""
    if wanted := wanted_by_server(environment):
        with suppress(OSError):  # they are optional
            _anew({**environment, **wanted}, execute)


def obey_setting(
    wanted: bool,
    settings_file: str | None,
    environment: Mapping[str, str] | None = None,
    execute: Execute = os.execve,
) -> None:
    """Execute this process again with the JIT off, if `wanted` is false and it switched it on.

    Raises WrongSetting if the settings file cannot be read a second time.
    """
    environment = os.environ if environment is None else environment
    if wanted or OWN_JIT not in environment or environment.get(JIT) == "0":
        return
    if settings_file is not None and not stat.S_ISREG(os.stat(settings_file).st_mode):
        raise WrongSetting(
            f"pythonJit is false in {settings_file}, which is not a regular file: set {JIT}=0 in"
            " the environment instead."
        )
    sys.stdout.flush()
    _anew({**environment, JIT: "0"}, execute)


def _anew(environment: Mapping[str, str], execute: Execute) -> None:
    if sys.executable:
        execute(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
