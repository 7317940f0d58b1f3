"""`troupemq store check` and `store rebuild`, as an operator runs them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from storage.clock import SystemClock
from storage.files.disk import RealDisk
from storage.files.lock_file import lock_owner
from storage.message_store import MessageStore
from tests.storage.derived import config
from tests.support.by_hand import BY_HAND
from tests.support.golden import manifest, store
from troupemq.cli import cli


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["store", *map(str, arguments)])


def damaged(root: Path) -> None:
    """Hits one unit and one record."""
    queue = next(path for path in sorted((root / "consumequeue").rglob("0" * 20)))
    with queue.open("r+b") as file:
        file.write(b"\x7f")
    with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(90)
        file.write(b"\x00\xff\x00\xff")


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["clean", "ext", "v6", "slave", BY_HAND])
def test_check_of_an_intact_store_of_the_original_prints_one_line(
    name: str, tmp_path: Path
) -> None:
    root = store(name, tmp_path)
    before = contents(root)
    result = run("check", root)
    assert result.exit_code == 0, result.output
    assert result.output.count("\n") == 1
    assert result.output.rstrip().endswith("no faults found")
    assert contents(root) == before


def test_check_names_the_findings_and_exits_with_1(tmp_path: Path) -> None:
    root = store(BY_HAND, tmp_path)
    damaged(root)
    result = run("check", root)
    assert result.exit_code == 1
    assert "commit log: damaged from 0 to" in result.output
    assert "consume queues: unit 0 of queue" in result.output
    assert "2 faults" in result.output


def test_check_of_a_hostile_store_prints_no_control_characters(tmp_path: Path) -> None:
    """Names of folders reached a terminal as they were."""
    root = store(BY_HAND, tmp_path)
    queue = root / "consumequeue" / "\x1b[2J\u202ex\x9b1m" / "0"
    queue.mkdir(parents=True)
    (queue / ("0" * 20)).write_bytes(b"too short")
    result = CliRunner().invoke(cli, ["store", "check", str(root)], color=True)
    assert result.exit_code == 1
    assert "\\x1b[2J\\u202ex\\x9b1m/0" in result.output
    assert result.output.replace("\n", "").isprintable()


def test_check_gives_one_json_object_a_line(tmp_path: Path) -> None:
    root = store(BY_HAND, tmp_path)
    damaged(root)
    result = run("check", root, "--json")
    *findings, summary = map(json.loads, result.output.splitlines())
    assert {each["part"] for each in findings} == {"commit log", "consume queues"}
    assert all(each["wrong"] for each in findings)
    assert (summary["clean"], summary["logEnd"]) == (False, manifest(BY_HAND)["commitLogEnd"])
    assert summary["wrong"] == {"commit log": 1, "consume queues": 1}


def test_check_takes_the_sizes_of_a_broker_conf(tmp_path: Path) -> None:
    root = store(BY_HAND, tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=6000\n")
    result = run("check", root, "-c", conf)
    assert result.exit_code == 1
    assert "index" in result.output, "maxHashSlotNum is another one"
    conf.write_text(f"{conf.read_text()}maxHashSlotNum=64\nmaxIndexNum=200\n")
    assert run("check", root, "-c", conf).exit_code == 0


def test_check_names_the_process_that_uses_the_store(tmp_path: Path) -> None:
    root = store(BY_HAND, tmp_path)
    made = MessageStore(config(str(root)), RealDisk(), SystemClock())
    made.open()
    try:
        assert lock_owner(str(root / "lock")) > 0
        result = run("check", root)
        assert result.exit_code == 0
        assert "(note) in use by process" in result.output
        refused = run("rebuild", root)
        assert refused.exit_code == 12 and "is in use by" in refused.output
        assert refused.output.count("\n") == 1
    finally:
        made.close()
    assert lock_owner(str(root / "lock")) == 0


def test_other_directories_are_a_one_sentence_error(tmp_path: Path) -> None:
    for command in ("check", "rebuild"):
        result = run(command, tmp_path)
        assert result.exit_code == 1 and "is not a store" in result.output
        assert list(tmp_path.iterdir()) == []
    assert run("check", tmp_path / "missing").exit_code == 2


@pytest.mark.parametrize(("name", "counts"), [("clean", (20, 519)), (BY_HAND, (12, 339))])
def test_rebuild_gives_equal_queues_and_keeps_the_config_files(
    name: str, counts: tuple[int, int], tmp_path: Path
) -> None:
    root = store(name, tmp_path)
    before = contents(root)
    with next((root / "index").iterdir()).open("r+b") as file:
        file.write(b"\xff" * 400)
    for queue in (root / "consumequeue").rglob("0" * 20):
        with queue.open("r+b") as file:
            file.write(b"\xff" * 30)
    assert run("check", root).exit_code == 1
    result = run("rebuild", root)
    assert result.exit_code == 0, result.output
    assert "consume queues: {}, messages: {}".format(*counts) in result.output
    assert run("check", root).exit_code == 0
    after = contents(root)
    kept = [path for path in before if "/consumequeue/" in path or "/config/" in path]
    assert len(kept) > 20
    assert {path: after[path] for path in kept} == {path: before[path] for path in kept}


@pytest.mark.parametrize("fault", ["log_is_elsewhere", "file_is_short", "file_is_missing"])
def test_rebuild_that_cannot_read_the_log_deletes_no_queue(fault: str, tmp_path: Path) -> None:
    """A rebuild deleted them first; without the disk of the log it ended with exit code 0."""
    root = store("clean", tmp_path)
    first, second, third = sorted((root / "commitlog").iterdir())
    gone = {"log_is_elsewhere": (first, second, third), "file_is_missing": (second,)}
    for each in gone.get(fault, ()):
        each.unlink()
    if fault == "file_is_short":
        with first.open("r+b") as file:
            file.truncate(40_000)
    before = {path: data for path, data in contents(root).items() if "/troupemq/" not in path}
    result = run("rebuild", root)
    assert result.exit_code != 0 and result.output.count("\n") == 1, result.output
    assert before.items() <= contents(root).items()


def test_other_files_beside_topics_and_queues_are_ignored(tmp_path: Path) -> None:
    """A start and 4.9.7 ignore them; check, rebuild and backup ended at them with exit code 14."""
    root = store("clean", tmp_path)
    for name in ("!first", ".DS_Store", "GS_T1/notes", "GS_T1/7"):
        (root / "consumequeue" / name).touch()
    for command, *more in (["check"], ["dump"], ["backup", tmp_path / "copy"], ["rebuild"]):
        result = run(command, root, *more)
        assert result.exit_code == 0, result.output
