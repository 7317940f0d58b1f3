"""A config file, its .bak and its checksums: saved whole, found again whatever happened."""

import errno
from itertools import count
from json import loads
from pathlib import Path

import pytest

from protocol.errors import RemoteError
from storage.errors import DiskFull, StoreError
from storage.files.disk import RealDisk
from storage.tables.json_config import LEFT_OUT_BYTES_MAX, Loaded, parsed_object, parsed_table, save
from storage.tables.json_config import load as load_with
from storage.tables.skipped_entry import SkippedEntry
from troupemq.testing.fake_disk import FakeDisk

PATH = "/store/config/topics.json"
BAK = f"{PATH}.bak"


def check(text: str, _: object = None) -> str:
    """Takes any JSON object, as its text."""
    parsed_object(text)
    return text


def load(disk: FakeDisk) -> Loaded[str]:
    return load_with(disk, PATH, check)


def loaded(disk: FakeDisk) -> str | None:
    return load(disk).value


def written(disk: FakeDisk, path: str, data: bytes) -> None:
    """Write the file like another broker or a damaged disk."""
    disk.make_dirs("/store/config")
    file = disk.open(path, create=True)
    file.set_size(0)
    file.pwrite(data, 0)
    file.sync()
    disk.sync_directory("/store/config")


def test_a_save_keeps_the_previous_version() -> None:
    disk = FakeDisk()
    assert load(disk) == Loaded(None)
    assert save(disk, PATH, '{"a":1}')
    assert load(disk) == Loaded('{"a":1}')
    assert not disk.exists(BAK)
    assert save(disk, PATH, '{\n\t"ä":{0:1\n\t}\n}')
    assert load(disk) == Loaded('{\n\t"ä":{0:1\n\t}\n}')
    assert disk.read_bytes(BAK) == b'{"a":1}'
    names = ["topics.json", "topics.json.bak", "topics.json.crc"]
    assert disk.listdir("/store/config") == names


def test_an_unchanged_table_is_not_written() -> None:
    disk = FakeDisk()
    save(disk, PATH, '{"a":1}')
    count = disk.sync_count
    assert not save(disk, PATH, '{"a":1}')
    assert disk.sync_count == count


@pytest.mark.parametrize("broken", [b"", b" \n", b'{"a":', b"[1]", b"\xff\xfe{}", b"\0" * 100])
def test_an_unreadable_file_falls_back_to_the_previous_version(broken: bytes) -> None:
    disk = FakeDisk()
    save(disk, PATH, '{"a":1}')
    save(disk, PATH, '{"a":2}')
    written(disk, PATH, broken)
    found = load(disk)
    assert (found.value, found.is_newest) == ('{"a":1}', False)
    assert PATH in found.findings
    assert "previous version" in found.findings
    save(disk, PATH, '{"a":3}', found.broken)
    assert load(disk) == Loaded('{"a":3}')
    assert disk.read_bytes(BAK) == b'{"a":1}'  # not the broken one
    if broken.strip():
        assert disk.read_bytes(f"{PATH}.broken") == broken


def test_a_missing_file_falls_back_to_the_previous_version() -> None:
    disk = FakeDisk()
    written(disk, BAK, b"{}")
    found = load(disk)
    assert (found.value, found.is_newest, found.broken) == ("{}", False, ())
    assert "missing" in found.findings


def test_two_broken_versions_are_reported_and_kept_aside() -> None:
    disk = FakeDisk()
    written(disk, PATH, b"{")
    written(disk, BAK, b"nonsense")
    found = load(disk)
    assert (found.value, found.is_newest, found.broken) == (None, False, (PATH, BAK))
    assert "no version is usable" in found.findings
    save(disk, PATH, '{"a":1}', found.broken)
    save(disk, PATH, '{"a":2}', found.broken)  # an owner repeats what it found at its start
    assert load(disk) == Loaded('{"a":2}')
    assert disk.read_bytes(BAK) == b'{"a":1}'
    assert disk.read_bytes(f"{PATH}.broken") == b"{"
    assert disk.read_bytes(f"{BAK}.broken") == b"nonsense"


def test_valid_json_that_the_table_rejects_counts_as_broken() -> None:
    def refuse(text: str, _: object = None) -> str:
        if "1" in text:
            return text
        raise RemoteError(1, "a number is missing")

    disk = FakeDisk()
    save(disk, PATH, '{"a":1}')
    written(disk, BAK, b'{"a":1}')
    written(disk, PATH, b'{"a":[]}')
    found = load_with(disk, PATH, refuse)
    assert (found.value, found.broken) == ('{"a":1}', (PATH,))
    save(disk, PATH, '{"a":11}', found.broken)
    assert disk.read_bytes(BAK) == b'{"a":1}', "a good .bak does not go for a broken file"
    assert disk.read_bytes(f"{PATH}.broken") == b'{"a":[]}'


@pytest.mark.parametrize(
    "text",
    ["{" * 100_000, "[" * 100_000, '{"a":' * 5000, '{"a":1e999999}', f'{{"a":{"9" * 5000}}}'],
)
def test_hostile_text_does_no_harm(text: str) -> None:
    disk = FakeDisk()
    written(disk, PATH, text.encode())
    load(disk)
    load_with(disk, PATH, lambda text, _: parsed_table(text, "a"))


# --- entries that are left out

SIDE = f"{PATH}.left-out"


def left_out(number: int, value: str = "x") -> SkippedEntry:
    return SkippedEntry(("topics", f"T{number}"), "perm is -3", value)


def entries_beside(disk: FakeDisk) -> list[str]:
    lines = disk.read_bytes(SIDE).splitlines() if disk.exists(SIDE) else []
    return [loads(line)["entry"] for line in lines]


def test_a_skipped_entry_is_kept_beside_the_file_once() -> None:
    disk = FakeDisk()
    save(disk, PATH, "{}", (), (left_out(1), left_out(2)))
    save(disk, PATH, '{"a":1}', (), (left_out(2), left_out(1), left_out(3)))
    save(disk, PATH, '{"a":2}')
    assert entries_beside(disk) == ["T1", "T2", "T3"]
    first = disk.read_bytes(SIDE).splitlines()[0]
    assert loads(first) == {"entry": "T1", "reason": "perm is -3", "value": {"topics": {"T1": "x"}}}


@pytest.mark.heavy
def test_the_file_of_skipped_entries_is_bounded_and_keeps_the_newest() -> None:
    disk = FakeDisk()
    value = "x" * (LEFT_OUT_BYTES_MAX // 3)
    for number in range(4):
        save(disk, PATH, numbered(number), (), (left_out(number, value),))
    assert entries_beside(disk) == ["T2", "T3"]


def test_a_power_cut_leaves_an_entry_in_the_file_or_beside_it() -> None:
    for step in count():
        disk = _Stopping()
        save(disk, PATH, numbered(0))
        disk.steps_left = step
        try:
            save(disk, PATH, numbered(1), (), (left_out(0),))
        except StoreError:
            pass
        else:
            break
        disk.steps_left = -1
        for seed in range(3):
            after = disk.crashed(seed)
            assert loaded(after) == numbered(0) or entries_beside(after) == ["T0"], step
    assert step > 8, "the steps were counted"


# --- the checksums


def test_any_flipped_bit_is_corrected() -> None:
    disk = FakeDisk()
    save(disk, PATH, '{"a":1}')
    text = '{"perm":6,"name":"T"}'
    save(disk, PATH, text)
    for position in range(len(text)):
        for bit in range(8):
            hit = disk.killed()
            hit.flip_bit(PATH, position, bit)
            found = load(hit)
            assert (found.value, found.is_newest) == (text, True)
            assert "one flipped bit" in found.findings
            save(hit, PATH, text, found.broken)
            assert load(hit) == Loaded(text)
            assert hit.read_bytes(BAK) == b'{"a":1}'


def test_a_flipped_bit_in_the_previous_version_is_corrected() -> None:
    disk = FakeDisk()
    save(disk, PATH, '{"a":1}')
    save(disk, PATH, '{"a":2}')
    written(disk, PATH, b"")
    disk.flip_bit(BAK, 5, 1)
    assert loaded(disk) == '{"a":1}'


def test_any_flipped_bit_of_the_checksums_changes_nothing() -> None:
    disk = FakeDisk()
    save(disk, PATH, '{"a":1}')
    save(disk, PATH, '{"a":2}')
    for position in range(len(disk.read_bytes(f"{PATH}.crc"))):
        hit = disk.killed()
        hit.flip_bit(f"{PATH}.crc", position, position % 8)
        assert load(hit) == Loaded('{"a":2}')


@pytest.mark.parametrize("times", [1, 2])
def test_a_file_from_another_broker_is_not_corrected_by_the_checksum(times: int) -> None:
    """4.9.7 knows no checksums; it writes the .bak whenever it writes the file."""
    disk = FakeDisk()
    save(disk, PATH, '{"a":8}')
    save(disk, PATH, '{"a":2}')
    for _ in range(times):
        written(disk, BAK, disk.read_bytes(PATH))
        written(disk, PATH, b'{"a":3}')
    assert load(disk) == Loaded('{"a":3}')
    assert save(disk, PATH, '{"a":4}')
    assert disk.read_bytes(BAK) == b'{"a":3}'
    written(disk, PATH, b"")
    assert loaded(disk) == '{"a":3}'


def test_an_edited_file_is_loaded() -> None:
    disk = FakeDisk()
    save(disk, PATH, '{"a":1}')
    written(disk, PATH, b'{"a":120}')
    assert load(disk) == Loaded('{"a":120}')


# --- power, disks, directories


@pytest.mark.parametrize("operation", ["pwrite", "sync", "rename"])
def test_a_failing_disk_leaves_the_old_version(operation: str) -> None:
    disk = FakeDisk()
    save(disk, PATH, '{"a":1}')
    disk.fail_next(operation, OSError(errno.ENOSPC, "no space"))
    with pytest.raises(DiskFull, match="cannot save"):
        save(disk, PATH, '{"a":2}')
    assert loaded(disk) == '{"a":1}'
    assert save(disk, PATH, '{"a":2}')
    assert load(disk) == Loaded('{"a":2}')


def numbered(number: int) -> str:
    return f'{{"number":{number}}}'


@pytest.mark.parametrize("seed", range(50))
def test_a_power_cut_leaves_the_last_saved_version(seed: int) -> None:
    disk = FakeDisk()
    for number in range(5):
        save(disk, PATH, numbered(number))
        assert load(disk.crashed(seed)) == Loaded(numbered(number))


class _Stopping(FakeDisk):
    """Loses its power before the step with a number: a write, a sync or a change of names."""

    steps_left = -1

    def maybe_fail(self, operation: str, path: str) -> None:
        super().maybe_fail(operation, path)
        if operation in ("pwrite", "sync", "rename", "sync_directory"):
            if self.steps_left == 0:
                raise OSError(errno.EIO, "gone")
            self.steps_left -= 1


def test_a_retry_after_a_failure_at_any_step_survives_a_power_cut() -> None:
    """After one at the last step the retry found the file saved, and did not sync its folder."""
    for step in range(40):
        disk = _Stopping()
        save(disk, PATH, numbered(0))
        disk.steps_left = step
        try:
            save(disk, PATH, numbered(1))
        except StoreError:
            disk.steps_left = -1
        else:
            return
        save(disk, PATH, numbered(1))
        found = {load(disk.crashed(seed)).value for seed in range(20)}
        assert found == {numbered(1)}, step


@pytest.mark.parametrize("state", ["good", "flipped", "newest broken", "all broken"])
@pytest.mark.trial(short=11, long=500)
def test_a_power_cut_at_any_step_of_a_save_leaves_one_of_the_two_versions(
    state: str, seed: int
) -> None:
    step = 0
    done = False
    while not done:
        disk = _Stopping()
        save(disk, PATH, numbered(0))
        save(disk, PATH, numbered(1))
        if state == "flipped":
            disk.flip_bit(PATH, 3, 2)
        if "broken" in state:
            written(disk, PATH, b"{")
        if state == "all broken":
            written(disk, BAK, b"}")
        before = load(disk)
        disk.steps_left = step
        try:
            save(disk, PATH, numbered(2), before.broken)
            done = True
        except StoreError:
            pass
        disk.steps_left = -1
        after = load(disk.crashed(seed)).value
        assert after in (before.value, numbered(2)), (step, after)
        assert not done or after == numbered(2)
        step += 1
    assert step > 8, "the steps were counted"


def test_a_directory_in_the_place_of_a_file_is_kept_aside(tmp_path: Path) -> None:
    disk, path = RealDisk(), str(tmp_path / "topics.json")
    for suffix in ("", ".bak", ".crc", ".tmp", ".bak.tmp", ".crc.tmp", ".broken"):
        (tmp_path / f"topics.json{suffix}" / "full").mkdir(parents=True)
    found = load_with(disk, path, check)
    assert (found.value, found.is_newest) == (None, False)
    assert "is a directory" in found.findings
    for number in range(3):
        assert save(disk, path, numbered(number), found.broken)
        assert load_with(disk, path, check) == Loaded(numbered(number))
    assert (tmp_path / "topics.json.bak").read_text() == numbered(1)
    assert len([each for each in tmp_path.iterdir() if each.is_dir()]) == 7


def test_an_unreadable_file_is_damaged_but_missing_permission_is_an_error() -> None:
    class Failing(FakeDisk):
        number = errno.EIO

        def read_bytes(self, path: str) -> bytes:
            if path == PATH:
                raise OSError(self.number, "no", path)
            return super().read_bytes(path)

    disk = Failing()
    written(disk, PATH, b"{}")
    written(disk, BAK, b'{"a":1}')
    found = load(disk)
    assert (found.value, found.broken) == ('{"a":1}', (PATH,))
    disk.number = errno.EACCES
    with pytest.raises(StoreError, match="cannot read a config file"):
        load(disk)
