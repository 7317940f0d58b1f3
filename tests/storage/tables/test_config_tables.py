"""The tables of config/: written as the original writes them, and read with care."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from storage.files.disk import RealDisk
from storage.tables.delay_offsets import format_delay_offsets, parse_delay_offsets
from storage.tables.groups import format_groups, parse_groups
from storage.tables.json_config import load, save
from storage.tables.offsets import format_offsets, parse_offsets
from storage.tables.topics import format_topics, parse_topics
from tests.support.by_hand import BY_HAND
from tests.support.golden import store
from troupemq.testing.fake_disk import FakeDisk

STORES = ["clean", "slave", "ext", "v6", "crashed", "crashed-recovered", "torn", "torn-recovered"]
STORES += [BY_HAND]
Kind = tuple[Callable[..., Any], Callable[[Any], str]]
KINDS: dict[str, Kind] = {
    "topics.json": (parse_topics, format_topics),
    "subscriptionGroup.json": (parse_groups, format_groups),
    "consumerOffset.json": (parse_offsets, format_offsets),
    "delayOffset.json": (parse_delay_offsets, format_delay_offsets),
}
TABLES = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
    "consumerOffset.json": "offsetTable",
    "delayOffset.json": "offsetTable",
}


@pytest.mark.parametrize("name", STORES)
def test_files_of_the_original_are_rewritten_byte_for_byte(name: str, tmp_path: Path) -> None:
    directory = store(name, tmp_path, "config") / "config"
    for file, (parse, form) in KINDS.items():
        for path in (directory / file, directory / f"{file}.bak"):
            text = path.read_text(encoding="utf-8") if path.exists() else None
            if text is not None and "\n" in text:  # a slave keeps its master's answer as it came
                assert form(parse(text)) == text
        found = load(RealDisk(), str(directory / file), parse)
        assert (found.is_newest, found.findings) == (True, "")


@pytest.mark.heavy
@pytest.mark.parametrize("file", KINDS)
@pytest.mark.parametrize("zeros", [False, True], ids=["cut", "zeros"])
def test_a_truncated_file_is_replaced_by_its_previous_version(
    file: str, zeros: bool, tmp_path: Path
) -> None:
    parse, form = KINDS[file]
    table = parse((store(BY_HAND, tmp_path, "config") / "config" / file).read_text())
    for entries in (
        getattr(table, "topic_configs", {}),
        getattr(table, "subscription_group_table", {}),
    ):
        for name in [*entries][2:]:  # two are as good as ten, and many times as quick
            del entries[name]
    data = form(table).encode()
    disk, path = FakeDisk(), f"/store/config/{file}"
    save(disk, path, data.decode())
    save(disk, path, " " + data.decode())
    for cut in range(len(data)):
        inner = disk.killed()
        opened = inner.open(path)
        if zeros:
            opened.pwrite(bytes(opened.size() - cut), cut)
        else:
            opened.set_size(cut)
        found = load(inner, path, parse)
        assert (found.value, found.is_newest) == (table, False), cut
        assert found.findings
        save(inner, path, form(table), found.broken)
        assert load(inner, path, parse).is_newest


@pytest.mark.parametrize("text", ["{}", '{"%s":null}', '{"%s":[]}', '{"%s":7}', "[]", "7"])
@pytest.mark.parametrize("file", KINDS)
def test_json_of_another_shape_counts_as_broken(file: str, text: str) -> None:
    disk, path = FakeDisk(), f"/store/config/{file}"
    save(disk, path, text.replace("%s", TABLES[file]))
    found = load(disk, path, KINDS[file][0])
    assert (found.value, found.broken, found.left_out) == (None, (path,), ())
    assert "cannot be used" in found.findings


PIECES = [b"{", b"}", b"[", b'"', b":", b",", b"-", b"1e999", b"9" * 30, b"null", b"\\ud800", b"\0"]
PIECES += [b'{"$ref":"$"}', b'{"$ref":".."}', b"\xff", b"true", b"\\", b"/*", b"x"]


@pytest.mark.trial(short=5, long=3000)
def test_any_file_content_is_either_loaded_or_reported_broken(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    file, (parse, form) = random.choice([*KINDS.items()])
    data = (store(BY_HAND, tmp_path, "config") / "config" / file).read_bytes()
    disk, path = FakeDisk(), f"/store/config/{file}"
    disk.make_dirs("/store/config")
    for _ in range(40):
        changed = bytearray(data)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(changed))
            changed[at : at + random.randint(0, 12)] = random.choice(PIECES)
        opened = disk.open(path, create=True)
        opened.set_size(0)
        opened.pwrite(changed, 0)
        found = load(disk, path, parse)
        assert (found.value is None) == bool(found.broken), bytes(changed)
        if found.value is not None:
            parse(form(found.value))


def test_a_topic_without_a_name_gets_that_of_its_key() -> None:
    table = parse_topics('{"topicConfigTable":{"T":{"perm":6}}}')
    assert table.topic_configs["T"].topic_name == "T"
