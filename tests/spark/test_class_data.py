"""Class-data archives: which sessions use one, and how it is made. No JVM is started here."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from runpy import run_module

import pytest

from spark import class_data
from spark.class_data import (
    SETTING,
    class_data_directory,
    is_whole,
    make_class_data,
    user_cache,
    with_class_data,
)
from storage.errors import StoreError

OPTIONS = "spark.driver.extraJavaOptions"


def environment_of(directory: Path) -> dict[str, str]:
    """Return an environment with a Java and its own cache."""
    java = directory / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    return {
        "JAVA_HOME": str(directory / "java"),
        "XDG_CACHE_HOME": str(directory / "cache"),
        "PATH": os.environ["PATH"],
    }


class Maker:
    """Replacement of the two processes that write the files."""

    def __init__(self) -> None:
        self.runs = 0
        self.fails = False

    def run(self, line: list[str], environment: Mapping[str, str]) -> None:
        self.runs += 1
        if self.fails:
            raise StoreError("cannot make a class-data archive: no room")
        if line[1] == "-Xshare:dump":
            Path(line[2].partition("=")[2]).write_bytes(b"base")
        else:
            (Path(line[-2]) / "spark.jsa").write_bytes(b"spark")


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Maker:
    maker = Maker()
    monkeypatch.setattr(class_data, "_run", maker.run)
    return maker


def test_a_session_uses_the_class_archive_of_its_java(tmp_path: Path, maker: Maker) -> None:
    environment = environment_of(tmp_path)
    plain = {OPTIONS: "-Xss1m", "spark.master": "local[2]"}
    assert with_class_data(plain, environment) == plain
    directory = make_class_data(environment)
    files = f"{directory / 'base.jsa'}:{directory / 'spark.jsa'}"
    with_it = {**plain, OPTIONS: f"-Xss1m -XX:SharedArchiveFile={files} -Xlog:cds*=off"}
    assert with_class_data(plain, environment) == with_it
    assert with_class_data({**plain, SETTING: "true"}, environment) == with_it
    assert with_class_data({**plain, SETTING: "false"}, environment) == plain
    own = {OPTIONS: "-XX:SharedArchiveFile=/mine.jsa"}
    assert with_class_data(own, environment) == own
    assert plain == {OPTIONS: "-Xss1m", "spark.master": "local[2]"}


def test_another_value_of_the_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"spark\.troupemq\.classData is yes: it must be true or"):
        with_class_data({SETTING: "yes"}, environment_of(tmp_path))


@pytest.mark.parametrize("name", ["base.jsa", "spark.jsa", "checksums"])
def test_a_truncated_class_archive_is_rebuilt(tmp_path: Path, maker: Maker, name: str) -> None:
    environment = environment_of(tmp_path)
    file = make_class_data(environment) / name
    file.write_bytes(file.read_bytes()[:-1])
    assert with_class_data({}, environment) == {}
    assert is_whole(make_class_data(environment))
    assert OPTIONS in with_class_data({}, environment)


def test_a_class_archive_is_created_once(tmp_path: Path, maker: Maker) -> None:
    environment = environment_of(tmp_path)
    directory = make_class_data(environment)
    assert directory.parent == user_cache(environment)
    assert maker.runs == 2
    assert make_class_data(environment) == directory
    assert maker.runs == 2


def test_an_updated_java_gets_another_class_archive(tmp_path: Path, maker: Maker) -> None:
    environment = environment_of(tmp_path)
    directory = make_class_data(environment)
    (tmp_path / "java" / "bin" / "java").write_text("newer")
    assert class_data_directory(environment) != directory
    assert with_class_data({}, environment) == {}


def test_first_of_two_concurrent_makers_wins(
    tmp_path: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = environment_of(tmp_path)

    def run(line: list[str], given: Mapping[str, str]) -> None:
        if line[1] != "-Xshare:dump":
            monkeypatch.setattr(class_data, "_run", maker.run)
            (make_class_data(environment) / "mark").touch()  # another process was faster
        maker.run(line, given)

    monkeypatch.setattr(class_data, "_run", run)
    directory = make_class_data(environment)
    assert (directory / "mark").exists()
    assert is_whole(directory)
    assert os.listdir(directory.parent) == [directory.name]


def test_a_failed_class_archive_leaves_no_file(tmp_path: Path, maker: Maker) -> None:
    environment = environment_of(tmp_path)
    maker.fails = True
    with pytest.raises(StoreError, match="no room"):
        make_class_data(environment)
    assert os.listdir(user_cache(environment)) == []


@pytest.mark.parametrize("name", ["a b", "a:b"])
def test_path_that_the_jvm_would_split_gets_no_archive(tmp_path: Path, name: str) -> None:
    environment = {**environment_of(tmp_path), "XDG_CACHE_HOME": str(tmp_path / name)}
    assert class_data_directory(environment) is None
    assert with_class_data({}, environment) == {}
    with pytest.raises(StoreError, match="a path without blanks and colons"):
        make_class_data(environment)


def test_no_archive_without_java() -> None:
    assert class_data_directory({"PATH": "/nowhere"}) is None


def test_the_class_archive_cache_belongs_to_the_user(tmp_path: Path) -> None:
    assert user_cache({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "troupemq"
    assert user_cache({}) == Path.home() / ".cache" / "troupemq"


def test_program_prints_the_directory_or_the_reason(
    tmp_path: Path, maker: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = environment_of(tmp_path)
    assert class_data.main(environment) == 0
    assert capsys.readouterr().out == f"{class_data_directory(environment)}\n"
    assert class_data.main({**environment, "JAVA_HOME": "/nowhere"}) == 1
    assert capsys.readouterr().out.startswith("cannot make a class-data archive")


def test_program_starts_its_session_by_the_right_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the second process was started as __main___session."""
    monkeypatch.delitem(sys.modules, class_data.MODULE)
    assert run_module(class_data.MODULE, run_name="program")["MODULE"] == class_data.__name__
