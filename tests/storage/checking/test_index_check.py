"""An index file beside its log: what the original wrote passes, any single change is found."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.checking.index_check import checks_of
from storage.config import StoreConfig
from storage.dispatching.followers import DispatchReader
from storage.files.disk import RealDisk
from storage.index.index import Index
from storage.index.index_layout import ENTRY, ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from storage.log.commit_log import CommitLog
from storage.log.damage import Damage
from tests.storage.derived import DELAY_LEVELS_MS, config
from tests.support.by_hand import BY_HAND
from tests.support.clock import ManualClock
from tests.support.golden import manifest, store


@dataclass
class Made:
    """The log and the index of a golden store."""

    config: StoreConfig
    log: CommitLog
    index: Index
    damage: Damage

    @classmethod
    def of(cls, name: str, path: Path) -> "Made":
        made_config = config(str(store(name, path)))
        log = CommitLog(made_config, RealDisk())
        log.load()
        log.start_at(manifest(name)["commitLogEnd"], 0)
        index = Index(made_config, RealDisk(), ManualClock())
        index.load(clean=True, safe_timestamp=0)
        return cls(made_config, log, index, Damage())

    @property
    def entries_start(self) -> int:
        return HEADER_BYTES + self.config.max_hash_slots * SLOT_BYTES

    def reasons(self) -> list[str]:
        """Return the reasons of the checks of all files, empty for valid ones."""
        reader = DispatchReader(self.log, DELAY_LEVELS_MS)
        said = []
        for check in checks_of(
            self.config, RealDisk(), self.log, self.damage, reader, self.index.files
        ):
            while not check.step():
                pass
            check.close()
            said.append(check.reason)
        return said

    def close(self) -> None:
        self.log.close()
        self.index.close()

    def flip(self, position: int, bit: int, number: int = 1) -> None:
        """One bit of the index file of this number."""
        path = Path(self.index.files[number].path)
        data = bytearray(path.read_bytes())
        data[position] ^= 1 << bit
        path.write_bytes(data)


@pytest.fixture
def clean(tmp_path: Path) -> Iterator[Made]:
    made = Made.of(BY_HAND, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("name", ["clean", "ext", "v6", "slave", "torn-recovered", BY_HAND])
def test_an_index_of_the_original_has_no_findings(name: str, tmp_path: Path) -> None:
    made = Made.of(name, tmp_path)
    assert made.index.files
    assert made.reasons() == [""] * len(made.index.files)
    made.close()


@pytest.mark.heavy
def test_every_flipped_bit_that_matters_is_found(clean: Made) -> None:
    """Flip each bit of an entry, and one bit of each slot."""
    entry = clean.entries_start + 77 * ENTRY_BYTES
    places = [(entry + n // 8, n % 8) for n in range(ENTRY_BYTES * 8)]
    places += [(HEADER_BYTES + n * SLOT_BYTES + 3, 0) for n in range(clean.config.max_hash_slots)]
    for position, bit in places:
        clean.flip(position, bit)
        reasons = clean.reasons()
        assert reasons[1] and not any(reasons[:1]), (position, bit)
        clean.flip(position, bit)
    assert not any(clean.reasons())


def test_a_missing_key_is_found(clean: Made) -> None:
    """The entries behind one that is taken out, and the chains, are as if it had never been."""
    file = clean.index.files[0]
    entries = file.entries()
    lost = len(entries) // 2
    rows = entries[:lost] + entries[lost + 1 :]
    heads: dict[int, int] = {}
    data = bytearray(Path(file.path).read_bytes())
    for number, (key_hash, offset, seconds, _) in enumerate(rows, 1):
        slot = key_hash % clean.config.max_hash_slots
        position = clean.entries_start + number * ENTRY_BYTES
        ENTRY.pack_into(data, position, key_hash, offset, seconds, heads.get(slot, 0))
        heads[slot] = number
    Path(file.path).write_bytes(data)
    assert f"a key of the record at {entries[lost][1]}" in clean.reasons()[0]


def test_missing_keys_of_a_damaged_record_are_accepted(clean: Made) -> None:
    entry = clean.index.files[1].entries()[50]
    file = clean.log.queue.find(entry[1])
    assert file is not None
    file.write(b"\0\0\0\0", entry[1] - file.first_offset + 4)  # its magic
    assert any(clean.reasons())
    clean.damage.add(entry[1], entry[1] + 91, "as asked")
    assert not any(clean.reasons())


def test_entries_of_deleted_records_are_accepted(clean: Made) -> None:
    assert clean.log.queue.drop_below(clean.log.queue.files[1].first_offset)
    assert clean.log.min_offset() > 0
    assert not any(clean.reasons())


def test_a_missing_middle_index_file_is_found(clean: Made) -> None:
    if len(clean.index.files) < 3:
        pytest.fail("the store has too few index files for this test")
    clean.index.files = (clean.index.files[0], *clean.index.files[2:])
    assert clean.reasons()[1].startswith("a key of the record at ")


def test_duplicate_keys_from_a_restart_of_the_original_are_accepted(clean: Made) -> None:
    """The file before ends in the middle of a record, and its first keys are repeated."""
    index = clean.index
    paths = [file.path for file in index.files]
    index.unlink(index.drop_from(paths[1]))
    assert index._begun[1] > 0
    index._begun = (0, 0)
    reader = DispatchReader(clean.log, DELAY_LEVELS_MS)
    position = 0
    while position < clean.log.end_offset:
        part = reader.read(position, 100)
        index.dispatch(part.entries)
        position = part.next_offset
    index.sync()
    assert len(index.files) == len(paths)
    first, second = index.files[0].entries(), index.files[1].entries()
    assert second[0][:2] in [entry[:2] for entry in first]
    assert not any(clean.reasons())
