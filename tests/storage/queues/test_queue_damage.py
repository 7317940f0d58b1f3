"""Starts with missing, short or foreign queue files: every unit is there afterwards."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.message import scan_head
from storage.config import StoreConfig
from storage.queues.consume_queue_ext import is_address
from storage.queues.queue_units import FILLER_BYTES
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.fake_disk import FakeDisk

QUEUE = "/store/consumequeue/Topic/0"
EXT_QUEUE = "/store/consumequeue_ext/Topic/0"
NAMES = [f"{number * 600:020d}" for number in range(4)]
EXTENDED = replace(CONFIG, enable_consume_queue_ext=True, consume_queue_ext_file_bytes=500)


def cut(name: str, size: int) -> Callable[[FakeDisk], None]:
    return lambda disk: disk.open(f"{QUEUE}/{name}").set_size(size)


def zero(name: str) -> Callable[[FakeDisk], None]:
    return lambda disk: disk.open(f"{QUEUE}/{name}").pwrite(bytes(600), 0)


def drop(path: str) -> Callable[[FakeDisk], None]:
    return lambda disk: disk.remove_tree(path) if disk.is_dir(path) else disk.unlink(path)


def replace_by_a_directory(disk: FakeDisk) -> None:
    disk.unlink(f"{QUEUE}/{NAMES[2]}")
    disk.make_dirs(f"{QUEUE}/{NAMES[2]}/inside")


def odd_names(disk: FakeDisk) -> None:
    for name in ("notes", f"{17:020d}", f"{600_000:020d}"):
        disk.open(f"{QUEUE}/{name}", create=True).pwrite(b"what", 0)
    disk.open("/store/consumequeue/stray", create=True)


DAMAGE = {
    "first file gone": drop(f"{QUEUE}/{NAMES[0]}"),
    "middle file gone": drop(f"{QUEUE}/{NAMES[1]}"),
    "last file gone": drop(f"{QUEUE}/{NAMES[3]}"),
    "queue gone": drop(QUEUE),
    "topic gone": drop("/store/consumequeue/Topic"),
    "all gone": drop("/store/consumequeue"),
    "first file empty": cut(NAMES[0], 0),
    "middle file empty": cut(NAMES[1], 0),
    "last file empty": cut(NAMES[3], 0),
    "middle file short": cut(NAMES[1], 333),
    "last file short": cut(NAMES[3], 33),
    "middle file zeros": zero(NAMES[1]),
    "last file zeros": zero(NAMES[3]),
    "a directory": replace_by_a_directory,
    "odd names": odd_names,
}


@pytest.mark.heavy
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("stop", ["known", "clean", "killed"])
@pytest.mark.parametrize("config", [CONFIG, EXTENDED], ids=["plain", "extended"])
def test_every_damaged_unit_is_restored(damage: str, stop: str, config: StoreConfig) -> None:
    first = SmallStore(config=config)
    first.send(200)
    if stop == "killed":
        first.store.flush()
        first.send(40)
        first.store.consume_queues.write_out_all()
        wanted = first.units()
        disk = first.disk.killed()
    else:
        wanted, disk = first.units(), first.disk
        first.store.close()
        if stop == "clean":
            disk.unlink("/store/troupemq/clean_stop.json")
    DAMAGE[damage](disk)
    second = SmallStore(disk, first.clock, config)
    if stop == "known" and "zeros" in damage:
        return  # not looked at; left to the first read and to the scrubber
    if damage == "middle file zeros":
        number = ("Topic", 0)
        assert len(second.units()[number]) == len(wanted[number])
        return
    assert second.units() == wanted
    second.send(50)
    again = second.restarted()
    assert sum(map(len, again.units().values())) == sum(map(len, wanted.values())) + 50
    if config is EXTENDED:
        check_extension(again)


def test_a_queue_with_its_only_unit_damaged_before_a_crash_is_refilled() -> None:
    """Only the list reveals the loss: the log is read behind its record, and none follows."""
    first = SmallStore()
    first.send(1, topic="Rarely")
    first.send(50)
    first.store.flush()
    first.send(10)
    disk = first.disk.killed()
    disk.flip_bit(f"/store/consumequeue/Rarely/0/{0:020d}", 1, 0)
    second = SmallStore(disk, first.clock)
    assert second.units() == first.units()
    assert any("queue 0 of 'Rarely'" in line.text for line in second.report.findings)
    assert not SmallStore(first.disk.killed(), first.clock).report.findings


def check_extension(made: SmallStore) -> None:
    """Every unit points at one that its record is known by."""
    for queue in made.store.consume_queues:
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            assert unit is not None and unit[1] != FILLER_BYTES and is_address(unit[2])
            known = queue.ext(unit[2])
            assert known is not None
            assert (
                known.store_timestamp
                == scan_head(made.log.view(unit[0], unit[1]), 0).store_timestamp
            )


@pytest.mark.parametrize("stop", ["known", "clean", "killed"])
@pytest.mark.parametrize("what", [EXT_QUEUE, "/store/consumequeue_ext"])
def test_a_missing_extension_is_rebuilt(stop: str, what: str) -> None:
    first = SmallStore(config=EXTENDED)
    first.send(200)
    first.store.flush()
    wanted = first.units()
    disk = first.disk.killed() if stop == "killed" else first.disk
    if stop != "killed":
        first.store.close()
    if stop == "clean":
        disk.unlink("/store/troupemq/clean_stop.json")
    disk.remove_tree(what)
    second = SmallStore(disk, first.clock, EXTENDED)
    assert second.units() == wanted
    assert any("queue 0 of 'Topic'" in line.text for line in second.report.findings)
    check_extension(second)


@pytest.mark.trial(short=20, long=1000)
def test_power_cuts_leave_queue_and_extension_in_agreement(seed: int) -> None:
    first = SmallStore(config=EXTENDED)
    first.send(60)
    first.store.flush()
    durable = first.log.end_offset
    first.send(80)
    first.store.commit_log.sync(first.log.end_offset)
    first.store.consume_queues.write_out_all()
    second = SmallStore(first.disk.crashed(seed), first.clock, EXTENDED)
    assert second.log.end_offset >= durable
    assert second.units() == first.units()
    check_extension(second)
    second.send(40)
    check_extension(second.restarted())
