"""Locked dependencies: hashes for all, whatever pyproject.toml asks for, and an SBOM of them."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.runtimes import needs

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements.lock", "requirements-dev.lock")
PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ; [^\\]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def locked(name: str) -> Iterator[tuple[str, str]]:
    """Each package of a lock and its version; some are there once for each platform."""
    for line in (ROOT / name).read_text().splitlines():
        found = PINNED.fullmatch(line)
        if found is not None:
            yield canonicalize_name(found[1]), found[2]


def wanted(*extras: str) -> list[Requirement]:
    """Return the requirements of pyproject.toml, with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_hashes_and_nothing_else_is_in_a_lock(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line[:1] != "#"]
    others = [line for line in lines if not PINNED.fullmatch(line) and not HASH.fullmatch(line)]
    assert others == [], "no address of a registry, no path, no package without a hash"
    bare = [
        line
        for line, behind in zip(lines, [*lines[1:], ""], strict=True)
        if PINNED.fullmatch(line) and not HASH.fullmatch(behind)
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("name", "extras"),
    [(LOCKS[0], ("spark", "java", "console")), (LOCKS[1], ("spark", "java", "console", "dev"))],
)
def test_a_lock_has_every_requested_package(name: str, extras: tuple[str, ...]) -> None:
    """After a change of pyproject.toml: `make lock`."""
    versions: dict[str, list[str]] = {}
    for package, version in locked(name):
        versions.setdefault(package, []).append(version)
    missing = [
        str(each)
        for each in wanted(*extras)
        if not any(
            each.specifier.contains(version, prereleases=True)
            for version in versions.get(canonicalize_name(each.name), [])
        )
    ]
    assert missing == [], "make lock"


def test_the_two_locks_name_the_same_versions() -> None:
    assert set(locked(LOCKS[0])) <= set(locked(LOCKS[1]))


def test_the_spark_of_the_locks_is_the_one_of_the_makefile() -> None:
    found = re.search(r"^spark_version := ([\w.]+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    assert ("pyspark", found[1]) in set(locked(LOCKS[0]))


@pytest.mark.slow(seconds=4)
def test_the_sbom_names_every_locked_package_with_its_hashes(tmp_path: Path) -> None:
    needs("cyclonedx_py")
    path = tmp_path / "sbom.json"
    line = [sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible"]
    line += ["--pyproject", "pyproject.toml", "--of", "JSON", "-o", str(path), "--no-validate"]
    done = subprocess.run([*line, LOCKS[0]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(path.read_text())
    assert told["bomFormat"] == "CycloneDX"
    assert told["metadata"]["component"]["name"] == "troupemq"
    found = {(canonicalize_name(each["name"]), each["version"]) for each in told["components"]}
    assert found == set(locked(LOCKS[0]))
    for each in told["components"]:
        files = each["externalReferences"]
        hashes = [one for file in files for one in file.get("hashes", [])]
        assert hashes and {one["alg"] for one in hashes} == {"SHA-256"}, each["name"]
