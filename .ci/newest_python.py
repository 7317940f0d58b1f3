"""Other Pythons that Debian has, beside this machine's own, and part of the tests with each.

    .venv/bin/python .ci/newest_python.py FOLDER            the newest CPython, with its JIT
    .venv/bin/python .ci/newest_python.py FOLDER pypy       the newest PyPy

Taken from Debian's testing, at the address that this machine's apt gets its packages from, chosen
by apt itself and with its signatures checked; unpacked below FOLDER with a C library of its own,
never installed: no file of the machine changes, and its apt does not hear of it. Then, in an
environment made of it: every module is imported that needs neither Spark nor a task framework, and
TESTS are run. On PyPy the wheel is tried, too (wheel_alone.py). Where that Python, or a library for
it, cannot be had, no change of ours is at fault. One sentence says so, and CI repeats it at its
end.
"""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "conf/deploy/container"))
from debian import Apt, DebianError, run, unpack, write_launcher

EXTRAS = ("console", "metrics", "otel")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "httpx2", "trustme")
PACKAGES = ("protocol", "storage", "remoting", "actors", "troupemq")
NOT_IMPORTED = (
    *("troupemq.datasource", "troupemq.cluster_demo"),  # need Spark
    *("troupemq.dramatiq", "troupemq.kombu", "troupemq.taskiq"),
)
"""Modules whose libraries are not installed for that Python."""
NOTES = Path(".ci/unsteady")
"""File that CI prints at its end."""
FAILED = Path(".pytest_cache/v/cache/lastfailed")
NOT_OURS = ("-W", "ignore:It looks like `register_random` was passed")
"""Warning of Hypothesis with Python 3.15."""

TESTS = ("tests/protocol", "tests/storage", "tests/actors", "tests/remoting")
ON_PYPY = ("tests/troupemq",)
"""Tests for PyPy besides; CPython's JIT has enough to compile in the others."""

SWITCHES = {"PYTHON_JIT": "1"}


def main(arguments: Sequence[str]) -> int:
    """Get that Python and try it; return the exit code."""
    if arguments == ["--import"]:
        return import_everything()
    is_pypy = arguments[1:] == ["pypy"]
    try:
        folder = Path(arguments[0]).resolve()
        base = unpacked(folder, is_pypy=is_pypy)
        python = environment(folder, base)
    except DebianError as error:
        name = "PyPy" if is_pypy else "Python"
        sentence = f"Not tried with the newest {name}, which cannot be had: {error}."
        print(sentence, file=sys.stderr)
        with NOTES.open("a", encoding="utf-8") as notes:
            notes.write(f"{sentence}\n")
        return 0
    own = {**os.environ, **SWITCHES}
    imports: list[str | Path] = [python, "-W", "error", __file__, "--import"]
    tests: list[str | Path] = [
        python,
        "-m",
        "pytest",
        "-q",
        *NOT_OURS,
        "-m",
        "not slow and not trial",
    ]
    tests += ["-n", "logical", "--dist=loadfile", "--no-loadscope-reorder", *TESTS]
    alone: list[str | Path] = [sys.executable, Path(__file__).with_name("wheel_alone.py"), base]
    again: list[str | Path] = [python, Path(__file__).with_name("again.py"), *NOT_OURS]
    if is_pypy:
        tests += ON_PYPY
    code = 0
    for command in (imports, *((alone,) if is_pypy else ()), tests):
        code = code or subprocess.run(command, env=own, check=False).returncode
    if code and FAILED.is_file():
        code = subprocess.run(again, env=own, check=False).returncode
    FAILED.unlink(missing_ok=True)  # or they would be run again with the other Python
    return code


def import_everything() -> int:
    """With this Python. A warning, of what goes in a later one, is a failure."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    count = 0
    for package in PACKAGES:
        root = importlib.import_module(package)
        for each in pkgutil.walk_packages(root.__path__, f"{package}."):
            if not each.name.startswith(NOT_IMPORTED) and not each.name.endswith("__main__"):
                importlib.import_module(each.name)
                count += 1
    name = f"{sys.implementation.name} {sys.version.split()[0]}"
    print(f"{name}: {count} modules imported")
    return 0


def environment(folder: Path, base: Path) -> Path:
    """Install the Python with all packages of TESTS; return its path."""
    venv = folder / "venv"
    run(base, "-m", "venv", "--clear", "--without-pip", venv)
    python = venv / "bin/python"
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tools = [each for each in extras["dev"] if re.split(r"[^\w-]", each)[0] in TOOLS]
    wanted = [*project["dependencies"], *tools, *(each for name in EXTRAS for each in extras[name])]
    run(
        Path(sys.executable).with_name("uv"),
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        *wanted,
    )
    return python


def unpacked(folder: Path, *, is_pypy: bool) -> Path:
    """Return the program, from FOLDER if an earlier run left it there."""
    found = folder / "found.json"
    if found.is_file():
        return Path(json.loads(found.read_text()))
    apt = Apt(folder / "apt")
    name = "pypy3" if is_pypy else apt.newest_python()
    headers = "pypy3-dev" if is_pypy else f"lib{name}-dev"
    pip = ("python3-pip-whl", "python3-setuptools-whl")
    root = folder / name
    unpack(apt.downloaded(name, headers, f"{name}-venv", *pip), root)
    programs = root / "usr/bin"
    launcher = programs / name
    if is_pypy:
        python = programs / "pypy3.11"
    else:
        python = launcher.rename(programs / "the-python")
        (kind,) = root.glob(f"usr/include/*/{name}/pyconfig.h")
        kind.replace(root / "usr/include" / name / "pyconfig.h")  # that one only leads to this one
    write_launcher(launcher, root, python)
    (ensurepip,) = root.glob("usr/lib/*/ensurepip/__init__.py")
    text = ensurepip.read_text()
    wheels = repr(str(root / "usr/share/python-wheels"))
    ensurepip.write_text(text.replace("sysconfig.get_config_var('WHEEL_PKG_DIR')", wheels))
    run(launcher, "-c", "import ssl, sqlite3, ctypes, lzma, bz2, venv, ensurepip")
    found.write_text(json.dumps(str(launcher)))
    return launcher


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
