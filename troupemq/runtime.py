"""Description of the Python interpreter that runs a process.

    CPython 3.15.0 with JIT
    CPython 3.15.0, JIT off                       built with a JIT
    CPython 3.11.7, built without optimisation    about 5 % slower
    PyPy 8.0.1 (Python 3.11)                      always compiles

As a program it prints JSON: the description, and the paths of the packages in its arguments.
jobs_python.py runs this file with any interpreter. It must therefore work on old Pythons and import
only the standard library.
"""

import json
import os
import sys
import sysconfig
from importlib.util import find_spec
from typing import NamedTuple

NO_JIT, JIT_OFF, JIT_ON = "none", "off", "on"
_NAMES = {"cpython": "CPython", "pypy": "PyPy"}
_DEBIANS_FOLDERS = ("build-shared", "build-static")
"""Debian's build folders; Debian optimises without the configure option."""


class Runtime(NamedTuple):
    name: str
    version: str
    """Version of the implementation; with PyPy not that of the language."""

    language: str
    """Version of the language, such as 3.11."""

    is_optimised: bool
    """Whether it was built with profile-guided optimisation."""

    jit: str

    @property
    def compiles(self) -> bool:
        """Whether its JIT is on."""
        return self.jit == JIT_ON

    def __str__(self) -> str:
        text = f"{self.name} {self.version}"
        if self.name != "CPython":
            return f"{text} (Python {self.language})"
        if self.jit != NO_JIT:
            text += " with JIT" if self.compiles else ", JIT off"
        return text if self.is_optimised else f"{text}, built without optimisation"


def this_runtime() -> Runtime:
    own = sys.implementation
    language = "{}.{}".format(*sys.version_info)
    if own.name != "cpython":
        version = "{}.{}.{}".format(*own.version)
        return Runtime(_NAMES.get(own.name, own.name), version, language, True, JIT_ON)
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    folder = str(sysconfig.get_config_var("abs_builddir") or "")
    optimised = was_optimised(options, folder)
    return Runtime("CPython", sys.version.split()[0], language, optimised, jit_of_this())


def was_optimised(options: str, folder: str) -> bool:
    """Return whether a CPython is optimised, from its `configure` options and build folder."""
    return "--enable-optimizations" in options or os.path.basename(folder) in _DEBIANS_FOLDERS


def jit_of_this() -> str:
    """Return the state of the JIT in this process's CPython: NO_JIT, JIT_OFF or JIT_ON."""
    own = getattr(sys, "_jit", None)
    if own is not None:
        return JIT_ON if own.is_enabled() else JIT_OFF if own.is_available() else NO_JIT
    if sys.version_info[:2] != (3, 13):
        return NO_JIT
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return jit_of_3_13(options, os.environ.get("PYTHON_JIT", ""))


def jit_of_3_13(options: str, wish: str) -> str:
    """Derive the JIT's state for CPython 3.13, which has no API, from options and PYTHON_JIT."""
    if "--enable-experimental-jit" not in options or "jit=interpreter" in options:
        return NO_JIT
    is_on = wish[0] != "0" if wish else "jit=yes-off" not in options
    return JIT_ON if is_on else JIT_OFF


def main(packages: list[str]) -> None:
    found = {name: find_spec(name) for name in packages}
    places = {name: each.origin for name, each in found.items() if each is not None}
    language = sys.version_info[:2]
    told = {"path": sys.executable, "language": language, "runtime": str(this_runtime())}
    sys.stdout.write(json.dumps({**told, "packages": places}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
