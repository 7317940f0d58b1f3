"""`troupemq store dump`: the command as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.golden import store
from troupemq.cli import cli

LOG = "commitlog/00000000000000000000"


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["store", "dump", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_a_file_is_printed_for_a_human(tmp_path: Path) -> None:
    root = store("clean", tmp_path)
    code, out, err = run(str(root / LOG), "--limit", "2")
    assert (code, err) == (0, "")
    assert "record 0  219 bytes  topic GS_T1  queue 0  queue offset 0" in out
    assert "CRC ok: t1 body 0" in out
    assert out.count("\nrecord ") == 2


def test_a_file_is_printed_for_a_program(tmp_path: Path) -> None:
    root = store("clean", tmp_path)
    code, out, _ = run(str(root / LOG), "--json", "--from", "219", "--limit", "1")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["kind"] for line in lines] == ["commit log file", "record", "more"]
    assert lines[1]["offset"] == 219
    assert lines[1]["properties"]["TAGS"] == "TagB"


def test_every_file_of_every_kind_is_printed_and_none_is_changed(tmp_path: Path) -> None:
    root = store("ext", tmp_path)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
    for path in [root, *sorted(root.rglob("*"))]:
        code, out, err = run(str(path))
        assert (code, err) == (0, ""), path
        assert out or (path.is_dir() and not list(path.iterdir()))
    assert sorted(path for path in root.rglob("*") if path.is_file()) == files
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize("name", ["missing", "unknown"])
def test_an_unreadable_file_is_a_one_sentence_error_with_exit_code_1(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "unknown").write_text("root:x:0:0")
    code, out, err = run(str(tmp_path / name))
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert name in err
    assert err.rstrip().endswith(".")


def test_a_start_beyond_the_end_is_a_one_sentence_error_with_exit_code_1(tmp_path: Path) -> None:
    code, out, err = run(str(store("clean", tmp_path) / LOG), "--from", "65536")
    assert (code, out) == (1, "")
    assert "ends before 65536" in err and err.count("\n") == 1


@pytest.mark.slow
def test_a_pipe_that_is_closed_early_ends_it_without_a_traceback(tmp_path: Path) -> None:
    path = store("clean", tmp_path) / LOG
    command = [sys.executable, "-m", "troupemq", "store", "dump", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"commit log file")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) in (0, 1)


def test_files_of_one_name_do_not_replace_each_other_in_a_copy(tmp_path: Path) -> None:
    """The copy had the last broker.conf only, and the exit code was 0."""
    paths = [tmp_path / name / "broker.conf" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("")
    also = [word for path in paths for word in ("--also", str(path))]
    words = ["store", "backup", str(tmp_path / "a"), str(tmp_path / "copy"), *also]
    done = CliRunner().invoke(cli, words)
    sentence = f"{paths[0]} and {paths[1]} have the same name"
    assert done.exit_code == 2 and sentence in done.stderr
    assert not (tmp_path / "copy").exists()
