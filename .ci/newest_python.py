"""Other Pythons that Debian has, beside this machine's own, and part of the tests with each.

    .venv/bin/python .ci/newest_python.py FOLDER            the newest CPython, with its JIT
    .venv/bin/python .ci/newest_python.py FOLDER pypy       the newest PyPy

Taken from Debian's testing, at the address that this machine's apt gets its packages from, chosen
by apt itself and with its signatures checked; unpacked below FOLDER with a C library of its own,
never installed: no file of the machine changes, and its apt does not hear of it. Then, in an
environment made of it: every module is imported that needs no Spark, and TESTS are run. Where that
Python, or a library for it, cannot be had, no change of ours is at fault: one sentence says so, and
CI repeats it at its end.
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

SUITE = "testing"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
TIMEOUT_S = 300
LAUNCHER = """\
#!/bin/sh
exec '{loader}' --argv0 "$0" --library-path '{libraries}' '{python}' "$@"
"""
"""A program looks for the machine's C library; started so, it takes its own."""

EXTRAS = ("console", "metrics", "otel", "top")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "httpx2", "trustme")
PACKAGES = ("protocol", "storage", "remoting", "actors", "troupemq")
NEEDS_SPARK = ("troupemq.datasource", "troupemq.cluster_demo")
NOTES = Path(".ci/unsteady")
"""What CI shows at its end."""
FAILED = Path(".pytest_cache/v/cache/lastfailed")
NOT_OURS = ("-W", "ignore:It looks like `register_random` was passed")
"""What Hypothesis says of itself with Python 3.15."""

TESTS = ("tests/protocol", "tests/storage", "tests/actors", "tests/remoting")
SWITCHES = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHON_JIT": "1"}


class NotToBeHad(Exception):
    """One sentence."""


def main(arguments: Sequence[str]) -> int:
    """Gets it, tries it; gives the exit code."""
    if arguments == ["--import"]:
        return import_everything()
    is_pypy = arguments[1:] == ["pypy"]
    try:
        python = environment(Path(arguments[0]).resolve(), is_pypy=is_pypy)
    except NotToBeHad as error:
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
    again: list[str | Path] = [python, Path(__file__).with_name("again.py"), *NOT_OURS]
    code = 0
    for command in (imports, tests):
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
            if not each.name.startswith(NEEDS_SPARK) and not each.name.endswith("__main__"):
                importlib.import_module(each.name)
                count += 1
    name = f"{sys.implementation.name} {sys.version.split()[0]}"
    print(f"{name}: {count} modules imported")
    return 0


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """What a program prints. Raises NotToBeHad with the end of what it said."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise NotToBeHad(str(error)) from None
    if done.returncode:
        last = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise NotToBeHad(f"{' '.join(words[:2])} … failed: {last}")
    return done.stdout


def environment(folder: Path, *, is_pypy: bool) -> Path:
    """Its Python, with all that TESTS ask for."""
    base = unpacked(folder, is_pypy=is_pypy)
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
    """The program; from FOLDER if it is there from before."""
    found = folder / "found.json"
    if found.is_file():
        return Path(json.loads(found.read_text()))
    apt = Apt(folder / "apt")
    name, program, headers = "pypy3", "pypy3.11", "pypy3-dev"
    if not is_pypy:
        minors = re.findall(r"^python3\.(\d+)$", apt.names(), re.MULTILINE)
        name = program = f"python3.{max(map(int, minors))}"
        headers = f"lib{name}-dev"
    root = folder / name
    for deb in apt.downloaded(name, headers=headers):
        run("dpkg-deb", "--extract", deb, root)
    if not is_pypy:
        (kind,) = root.glob(f"usr/include/*/{name}/pyconfig.h")
        kind.replace(root / "usr/include" / name / "pyconfig.h")  # that one only leads to this one
    (launcher,) = (each for each in (root / "usr/bin").glob(f"{name}*") if each.name == program)
    own = launcher.rename(launcher.with_name("the-python")) if not is_pypy else launcher
    launcher = launcher if not is_pypy else root / "usr/bin/pypy3"
    launcher.unlink(missing_ok=True)  # of PyPy it is a link
    (loader,) = root.glob("usr/lib*/ld-linux-*.so.*")
    (library,) = root.glob("usr/lib/*/libc.so.6")
    launcher.write_text(
        LAUNCHER.format(loader=loader, libraries=library.parent, python=own), encoding="utf-8"
    )
    launcher.chmod(0o755)
    run(launcher, "-c", "import ssl, sqlite3, ctypes, lzma, bz2")
    found.write_text(json.dumps(str(launcher)))
    return launcher


class Apt:
    """Debian's package manager, with lists of its own and as if nothing were installed."""

    def __init__(self, folder: Path) -> None:
        self._archives = folder / "archives"
        for each in (folder / "lists/partial", self._archives / "partial"):
            each.mkdir(parents=True, exist_ok=True)
        status, sources = folder / "status", folder / "sources.list"
        status.write_text("")
        sources.write_text(f"deb [signed-by={KEYS}] {self._address()} {SUITE} main\n")
        settings = {
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": status,
            "Dir::Cache": folder,
            "Dir::Cache::archives": self._archives,
            "Acquire::Languages": "none",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
            "Debug::NoLocking": "true",
        }
        self._options = [
            word for each in settings.items() for word in ("-o", "=".join(map(str, each)))
        ]
        run("apt-get", *self._options, "-qq", "update")

    def names(self) -> str:
        """Of all Pythons' packages, one a line."""
        return run("apt-cache", *self._options, "pkgnames", "python3.")

    def downloaded(self, name: str, headers: str) -> list[Path]:
        """The package with all that it depends on; `headers` alone."""
        run("apt-get", *self._options, "-qq", "-y", "--download-only", "install", name)
        run("apt-get", *self._options, "-qq", "download", headers, cwd=self._archives)
        return sorted(self._archives.glob("*.deb"))

    @staticmethod
    def _address() -> str:
        form = "$(ORIGIN) $(COMPONENT) $(REPO_URI)"
        found = run("apt-get", "indextargets", "--format", form, "Created-By: Packages")
        for line in found.splitlines():
            origin, component, address = line.split(maxsplit=2)
            if (origin, component) == ("Debian", "main") and "security" not in address:
                return address
        raise NotToBeHad("this machine's apt has no Debian among its sources")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
