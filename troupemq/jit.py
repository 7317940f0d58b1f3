"""The JIT of CPython, which servers switch on: the interpreter has to be told before it starts.

    the environment has PYTHON_JIT      it holds, and nothing happens here
    the interpreter has a JIT, off      the process executes itself anew, with PYTHON_JIT=1
    the system forbids to make code     it stays off (MemoryDenyWriteExecute of systemd)
    `pythonJit` is false                it does so once more, with PYTHON_JIT=0

The process keeps its number, its command line and its open streams. It does the first before it
imports what a server needs; the setting is known only when its file has been read. The processes
that it starts inherit what it has chosen; jobs, which another Python may run, do not.
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


def switch_on(environment: Mapping[str, str], execute: Execute = os.execve) -> None:
    """Execute this process anew with its JIT, if it has one that is off."""
    if environment.get(JIT) or sys.flags.ignore_environment:
        return
    if jit_of_this() == JIT_OFF and may_make_code():
        with suppress(OSError):  # a server runs without it, too
            _anew({**environment, JIT: "1", OWN_JIT: "1"}, execute)


def obey_setting(
    wanted: bool,
    settings_file: str | None,
    environment: Mapping[str, str] | None = None,
    execute: Execute = os.execve,
) -> None:
    """Execute this process anew without the JIT that `switch_on` gave it, if `wanted` is false.

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
