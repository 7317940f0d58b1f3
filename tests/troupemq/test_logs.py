"""Log lines for people and for machines, from our code and from libraries."""

import json
import logging
import os
from errno import EACCES
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog import get_logger

from storage.errors import StoreError
from troupemq.client.log import client_logger
from troupemq.logs import FILE_BYTES_MAX, FILES_KEPT, set_up_logs, shut_down_logs


def written(path: Path) -> list[str]:
    shut_down_logs()
    return path.read_text().splitlines()


def test_a_text_line_has_time_level_event_and_fields(tmp_path: Path) -> None:
    set_up_logs(path=tmp_path / "log")
    get_logger("ours").info("queue taken", queue="T@b:0", offset=17, why="it was free")
    client_logger("client").warning("pull failed", queue="T@b:1")
    logging.getLogger("theirs").error("plain")
    ours, client, theirs = written(tmp_path / "log")
    assert ours.endswith("Z info    queue taken queue=T@b:0 offset=17 why='it was free'")
    assert client.endswith("Z warning pull failed queue=T@b:1")
    assert theirs.endswith("Z error   plain")


def test_a_json_line_is_an_object(tmp_path: Path) -> None:
    set_up_logs(as_json=True, path=tmp_path / "log")
    get_logger("ours").info("rolled", file="名", offset=17)
    (line,) = written(tmp_path / "log")
    fields = json.loads(line)
    assert fields.pop("timestamp").endswith("Z")
    assert fields == {"event": "rolled", "file": "名", "offset": 17, "level": "info"}


def test_a_failure_comes_with_its_traceback(tmp_path: Path) -> None:
    set_up_logs(path=tmp_path / "log")
    try:
        raise ValueError("broken")
    except ValueError:
        get_logger("ours").exception("task failed", name="x")
        client_logger("client").error("listener failed", exc_info=True)
    lines = written(tmp_path / "log")
    assert lines[0].endswith("error   task failed name=x")
    assert lines[1].startswith("  Traceback") and lines[-1] == "  ValueError: broken"
    assert lines.count("  ValueError: broken") == 2


def test_lines_below_the_level_are_omitted(tmp_path: Path) -> None:
    set_up_logs(path=tmp_path / "log", level=logging.WARNING)
    get_logger("ours").info("chatter")
    client_logger("client").info("chatter")
    assert written(tmp_path / "log") == []


@pytest.mark.heavy
def test_log_files_are_rotated_and_limited(tmp_path: Path) -> None:
    set_up_logs(path=tmp_path / "log")
    log = get_logger("ours")
    for _ in range((FILES_KEPT + 2) * FILE_BYTES_MAX // (1 << 20)):
        log.info("x" * (1 << 20))
    written(tmp_path / "log")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + FILES_KEPT
    assert all(file.stat().st_size <= FILE_BYTES_MAX for file in files)


def test_log_that_cannot_be_renamed_goes_on_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder without permission every line past 10 MiB was lost."""
    monkeypatch.setattr("troupemq.logs.FILE_BYTES_MAX", 1000)
    set_up_logs(path=tmp_path / "log")
    log = get_logger("ours")
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", Mock(side_effect=PermissionError(EACCES, "not allowed")))
        for number in range(12):
            log.info("x" * 100, number=number)
    for number in range(12, 20):
        log.info("x" * 100, number=number)
    files = sorted(tmp_path.iterdir(), reverse=True)
    found = [line for each in files for line in written(each)]
    assert len(files) > 1
    assert [int(line.rpartition("=")[2]) for line in found] == [*range(20)]


def test_lines_go_to_stderr_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs()
    get_logger("ours").info("hello")
    captured = capsys.readouterr()
    assert captured.out == "" and "info    hello" in captured.err


def test_an_unwritable_log_is_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot write the log"):
        set_up_logs(path=tmp_path / "file" / "log")
