"""The Pythons that run brokers under measurement: their names, and whether they are optimised."""

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

JIT_ON = {"PYTHON_JIT": os.environ.get("PYTHON_JIT", "1")}
"""Environment of a broker: a JIT is on wherever there is one, unless this process has it off."""

_SIGNS = {"--enable-optimizations", "--prefix=/usr"}
"""Arguments of an optimised build. Debian's does not name its profile, only its prefix."""

_ASK = """
import json, pykka, sys, sysconfig  # a broker needs Pykka
jit = getattr(sys, "_jit", None)
print(json.dumps([
    sys.implementation.name,
    sys.version.split()[0],
    getattr(sys, "pypy_version_info", ())[:3],
    bool(jit) and jit.is_enabled(),
    sysconfig.get_config_var("CONFIG_ARGS") or "",
]))
"""


class UnfitInterpreter(Exception):
    """A Python that cannot be measured, in one sentence."""


@dataclass(frozen=True)
class Interpreter:
    """One Python: how to run it, and what it is called."""

    path: str
    name: str
    """For example "PyPy 8.0.1 (Python 3.11.15)" or "CPython 3.15.0 with JIT"."""
    is_optimised: bool

    @classmethod
    def asked(cls, path: str) -> "Interpreter":
        """Ask the Python at `path` for its build; UnfitInterpreter if no broker can run there."""
        environment = {**os.environ, **JIT_ON}
        command = [path, "-c", _ASK]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment
            )
        except OSError as error:
            raise UnfitInterpreter(f"{path} cannot be run: {error.strerror}") from error
        if done.returncode or not done.stdout:
            reason = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
            raise UnfitInterpreter(f"no broker can run on {path}: {reason}")
        kind, version, pypy, has_jit, arguments = json.loads(done.stdout)
        if pypy:
            own = ".".join(map(str, pypy))
            return cls(path, f"PyPy {own} (Python {version})", is_optimised=True)
        is_optimised = not _SIGNS.isdisjoint(shlex.split(arguments))
        name = f"{'CPython' if kind == 'cpython' else kind} {version}" + " with JIT" * has_jit
        name += "" if is_optimised else " without optimisation"
        return cls(path, name, is_optimised)


def chosen(paths: Sequence[str], *, unoptimised: bool) -> dict[str, Interpreter]:
    """Return the Pythons by name; UnfitInterpreter where one may not be measured."""
    found = {each.name: each for each in map(Interpreter.asked, paths)}
    for each in found.values():
        if not (each.is_optimised or unoptimised):
            raise UnfitInterpreter(
                f"{each.path} is {each.name}: choose another one with PYTHON=, "
                'or accept it with ARGS="--unoptimised"'
            )
    if len(found) < len(paths):
        raise UnfitInterpreter(f"two of these Pythons are the same: {', '.join(paths)}")
    return found
