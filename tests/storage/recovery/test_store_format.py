"""Tests of storage/recovery/store_format.py: a store of a later version is not written to."""

import json
from collections.abc import Callable
from zlib import crc32

import pytest

from storage.errors import NewerStore
from storage.files.disk import Disk
from storage.recovery.store_format import STORE_FORMAT, format_of, require_known_format
from tests.support.store import SmallStore

PATH = "/store/troupemq/format.json"


def write(disk: Disk, contents: bytes) -> None:
    if disk.exists(PATH):
        disk.unlink(PATH)
    disk.make_dirs("/store/troupemq")
    file = disk.open(PATH, create=True)
    file.pwrite(contents, 0)
    file.close()


def checked(value: object) -> bytes:
    line = json.dumps(value).encode()
    return b"%s\n%08x\n" % (line, crc32(line))


@pytest.fixture
def small() -> SmallStore:
    store = SmallStore()
    store.send(3)
    store.store.close()
    return store


def test_a_start_writes_the_store_format_and_the_version_it_needs(small: SmallStore) -> None:
    line = small.disk.read_bytes(PATH).splitlines()[0]
    assert json.loads(line) == {"format": STORE_FORMAT, "needs": "0.1.0"}
    assert format_of(small.store.config, small.disk) == STORE_FORMAT


def test_a_store_without_the_file_has_format_0_and_gets_it(small: SmallStore) -> None:
    small.disk.unlink(PATH)
    assert format_of(small.store.config, small.disk) == 0
    SmallStore(small.disk, small.clock).store.close()
    assert format_of(small.store.config, small.disk) == STORE_FORMAT


@pytest.mark.parametrize("damage", [bytes, lambda whole: whole[:-4] + b"0000"])
def test_a_newer_store_is_refused_unchanged_with_the_version_it_needs(
    small: SmallStore, damage: Callable[[bytes], bytes]
) -> None:
    write(small.disk, damage(checked({"format": STORE_FORMAT + 1, "needs": "7.3"})))
    before = {path: small.disk.read_bytes(path) for path in small.disk.paths()}
    with pytest.raises(NewerStore, match=r"start TroupeMQ 7\.3 or later"):
        SmallStore(small.disk, small.clock)
    assert {path: small.disk.read_bytes(path) for path in small.disk.paths()} == before


@pytest.mark.parametrize("contents", [b"", b"{", b"[3]", checked({"format": "x"})])
def test_an_invalid_format_file_is_rewritten(small: SmallStore, contents: bytes) -> None:
    write(small.disk, contents)
    require_known_format(small.store.config, small.disk)
    SmallStore(small.disk, small.clock).store.close()
    assert format_of(small.store.config, small.disk) == STORE_FORMAT
