"""Debian's packages of one suite, unpacked below a folder with a C library of their own.

The machine's apt chooses them, with lists of its own, and checks their signatures. Nothing is
installed: no file of the machine changes.
"""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

SUITE = "testing"
"""The first with a PyPy of Python 3.11."""

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
TIMEOUT_S = 600
LAUNCHER = """\
#!/bin/sh
exec '{loader}' --argv0 "$0" --library-path '{libraries}' '{python}' "$@"
"""
"""Start a program with the C library beside it in place of the machine's."""


class DebianError(Exception):
    """Failed command, in one sentence."""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Return what a program prints. Raise DebianError with the end of its error."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise DebianError(str(error)) from None
    if done.returncode:
        last = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise DebianError(f"{' '.join(words[:3])} … failed: {last}")
    return done.stdout


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

    def newest_python(self) -> str:
        """Return the name of the newest CPython's package."""
        names = run("apt-cache", *self._options, "pkgnames", "python3.")
        minors = re.findall(r"^python3\.(\d+)$", names, re.MULTILINE)
        return f"python3.{max(map(int, minors))}"

    def downloaded(self, name: str, *alone: str) -> list[Path]:
        """Fetch a package with all that it depends on, and others without; return the files."""
        run("apt-get", *self._options, "-qq", "-y", "--download-only", "install", name)
        run("apt-get", *self._options, "-qq", "download", *alone, cwd=self._archives)
        return sorted(self._archives.glob("*.deb"))

    @staticmethod
    def _address() -> str:
        form = "$(ORIGIN) $(COMPONENT) $(REPO_URI)"
        found = run("apt-get", "indextargets", "--format", form, "Created-By: Packages")
        for line in found.splitlines():
            origin, component, address = line.split(maxsplit=2)
            if (origin, component) == ("Debian", "main") and "security" not in address:
                return address
        raise DebianError("this machine's apt has no Debian among its sources")


def unpack(debs: Iterable[Path], root: Path) -> dict[str, str]:
    """Unpack packages without running their scripts; return the version of each."""
    found = {}
    for deb in debs:
        run("dpkg-deb", "--extract", deb, root)
        name, number = run("dpkg-deb", "--show", "--showformat=${Package} ${Version}", deb).split()
        found[name] = number
    return found


def write_launcher(path: Path, root: Path, python: Path) -> None:
    """Replace `path` by a script that starts an unpacked Python on this machine."""
    (loader,) = root.glob("usr/lib*/ld-linux-*.so.*")
    (library,) = root.glob("usr/lib/*/libc.so.6")
    path.unlink(missing_ok=True)
    path.write_text(
        LAUNCHER.format(loader=loader, libraries=library.parent, python=python), encoding="utf-8"
    )
    path.chmod(0o755)
