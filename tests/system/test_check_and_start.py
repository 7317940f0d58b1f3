"""Findings of `store check` equal those of the next start, for each kind of loss.

A store that a broker filled and stopped cleanly is damaged in one way at a time, checked, and
opened by a broker. A store without findings opens without a finding.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from structlog.testing import capture_logs

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import UpdateConsumerOffsetHeader
from storage.checking.store_check import CheckReport, StoreCheck, entry_left_out, found_again
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk

ROOT = "/store"
CONFIG_DIR = f"{ROOT}/config"
EXTENDED = replace(STORE, enable_consume_queue_ext=True, consume_queue_ext_file_bytes=4096)
SETTINGS = replace(BROKER, property_filter_enable=True)
TABLES = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset", "consumerFilter")

Damage = Callable[[FakeDisk], None]


@cache
def stopped(*, killed: bool = False) -> FakeDisk:
    """Topics, two groups with offsets and a filter, delayed messages: stopped cleanly, or killed
    a while after its checkpoint."""
    broker = SimulatedBroker(5, FakeDisk(), SETTINGS, store_config=EXTENDED)
    for topic in ("Orders", "Payments"):
        broker.make_topic(topic, queues=2)
    for group in ("billing", "shipping"):
        broker.make_group(group)
        offset = UpdateConsumerOffsetHeader(group, "Orders", 0, 3).encode()
        assert broker.ask(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, offset)).code == 0
    broker.subscribe("a > 1", topic="Orders", kind="SQL92", group="billing")
    for number in range(120):
        delay = "\x02DELAY\x011" if number % 10 == 0 else ""
        properties = f"KEYS\x01k{number}{delay}"
        topic = ("Orders", "Payments")[number % 2]
        broker.send(topic=topic, queue_id=number // 2 % 2, properties=properties)
    assert isinstance(broker.disk, FakeDisk)
    broker.system.advance(130_000 if killed else 30_000)
    if killed:
        broker.send(topic="Orders", properties="KEYS\x01late")
    disk = broker.disk.killed()
    broker.stop()
    return disk if killed else broker.disk


def gone(*names: str) -> Damage:
    def damage(disk: FakeDisk) -> None:
        for name in names:
            path = f"{ROOT}/{name}"
            assert disk.exists(path), path
            (disk.remove_tree if disk.is_dir(path) else disk.unlink)(path)

    return damage


def emptied(directory: str) -> Damage:
    def damage(disk: FakeDisk) -> None:
        for name in disk.listdir(f"{ROOT}/{directory}"):
            disk.unlink(f"{ROOT}/{directory}/{name}")

    return damage


def flipped(name: str, position: int = 14) -> Damage:
    return lambda disk: disk.flip_bit(f"{ROOT}/{name}", position, 2)


def table_gone(name: str) -> Damage:
    """With its previous version, if there is one."""

    def damage(disk: FakeDisk) -> None:
        path = f"{CONFIG_DIR}/{name}.json"
        disk.unlink(path)
        if disk.exists(f"{path}.bak"):
            disk.unlink(f"{path}.bak")

    return damage


def written(name: str, data: bytes, *, alone: bool = False) -> Damage:
    def damage(disk: FakeDisk) -> None:
        path = f"{ROOT}/{name}"
        file = disk.open(path, create=True)
        file.set_size(0)
        file.pwrite(data, 0)
        for other in (f"{path}.crc", f"{path}.bak"):
            if alone and disk.exists(other):
                disk.unlink(other)

    return damage


def with_entry(name: str, table: str, key: str, value: object) -> Damage:
    """Change the file by hand: the checksums are removed, as docs/operations.md advises."""

    def damage(disk: FakeDisk) -> None:
        path = f"{CONFIG_DIR}/{name}.json"
        found = json.loads(plain_json(disk.read_bytes(path)))
        found[table][key] = value
        written(f"config/{name}.json", json.dumps(found).encode())(disk)
        disk.unlink(f"{path}.crc")

    return damage


def plain_json(data: bytes) -> bytes:
    """Queue ids are keys without quotes."""
    for number in range(20):
        for before in (b"{", b","):
            data = data.replace(b"%b%d:" % (before, number), b'%b"%d":' % (before, number))
    return data


def first_below(disk: FakeDisk, directory: str) -> str:
    return next(path for path in disk.paths() if path.startswith(f"{ROOT}/{directory}"))


def first_gone(directory: str) -> Damage:
    return lambda disk: disk.unlink(first_below(disk, directory))


def first_flipped(directory: str, position: int) -> Damage:
    return lambda disk: disk.flip_bit(first_below(disk, directory), position, 2)


SUMS = (
    "entries left out",
    "store recovered",
    "disk space low",
    "delay offset unknown, level delivered from its first message",
)
"""Lines of a start that say how much, what follows, or are not of what a store holds."""

CASES: dict[str, tuple[Damage, set[str]]] = {
    "an offset with a bad entry": (
        with_entry("consumerOffset", "offsetTable", "Orders@bad", {"-1": 5}),
        {"config"},
    ),
    "a topic with a bad entry": (
        with_entry("topics", "topicConfigTable", "Bad", {"readQueueNums": -4, "topicName": "Bad"}),
        {"config"},
    ),
    "index gone": (gone("index"), {"index"}),
    "an index file gone": (first_gone("index/"), {"index"}),
    "the header of an index file flipped": (first_flipped("index/", 3), {"index"}),
    "config gone": (gone("config"), {"config"}),
    "transaction gone": (gone("transaction"), {"transaction table"}),
    "the redo log flipped": (
        flipped("transaction/redolog/covered_offset", 9),
        {"transaction table"},
    ),
    "checkpoint gone": (gone("checkpoint"), {"checkpoint"}),
    "checkpoint cut": (written("checkpoint", b"short"), {"checkpoint"}),
    "checkpoint's own half flipped": (flipped("checkpoint", 75), {"checkpoint"}),
    "all queues gone": (gone("consumequeue"), {"consume queues"}),
    "a queue gone": (gone("consumequeue/Orders/1"), {"consume queues"}),
    "a queue's file gone": (first_gone("consumequeue/Orders/1/"), {"consume queues"}),
    "an extension file gone": (first_gone("consumequeue_ext/Orders/0/"), {"consume queues"}),
    "all extensions gone": (gone("consumequeue_ext"), {"consume queues"}),
    "the clean stop flipped": (flipped("troupemq/clean_stop.json"), {"store"}),
    "the list of queues flipped": (flipped("troupemq/queues.json"), {"store"}),
    "the list of queues gone": (gone("troupemq/queues.json"), {"store"}),
    "a replica mark with something in it": (written("troupemq/replica", b"?"), {"store"}),
    "the log gone": (emptied("commitlog"), {"commit log"}),
    **{f"{name}.json gone": (table_gone(name), {"config"}) for name in TABLES},
    **{f"{name}.json flipped": (flipped(f"config/{name}.json"), {"config"}) for name in TABLES},
    **{
        f"{name}.json unreadable": (written(f"config/{name}.json", b"{]"), {"config"})
        for name in TABLES
    },
    **{
        f"{name}.json unreadable, alone": (
            written(f"config/{name}.json", b"{]", alone=True),
            {"config"},
        )
        for name in TABLES
    },
}


def checked(disk: FakeDisk) -> CheckReport:
    return StoreCheck(disk, EXTENDED).run()


def said_by_a_start(disk: FakeDisk) -> set[str]:
    """Everything that a start warns of, in the words of the check."""
    said: set[str] = set()
    with capture_logs() as lines:
        broker = SimulatedBroker(6, disk, SETTINGS, store_config=EXTENDED)
    for line in lines:
        if line["log_level"] != "warning" or line["event"] in SUMS:
            continue
        if line["event"] == "entry left out":
            said.add(entry_left_out(line["file"], line["entry"], line["reason"]))
        elif line["event"] == "topics found by their queues":
            said.add(found_again(f"{CONFIG_DIR}/topics.json", line["topics"]))
        elif line["event"] == "groups found by their topics and offsets":
            said.add(found_again(f"{CONFIG_DIR}/subscriptionGroup.json", line["groups"]))
        else:
            said.add(line["found"])
    broker.stop()
    return said


def test_a_cleanly_stopped_store_has_no_findings_in_check_and_start() -> None:
    disk = stopped().killed()
    assert checked(disk).findings == []
    assert said_by_a_start(disk) == set()


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
def test_the_check_reports_the_findings_of_the_next_start(case: str) -> None:
    damage, parts = CASES[case]
    disk = stopped().killed()
    damage(disk)
    report = checked(disk)
    named = {each.text for each in report.findings if each.is_wrong}
    said = said_by_a_start(disk)
    assert said, f"the start says nothing, the check {named}"
    assert said <= named, f"the start says {said - named}, the check {named}"
    assert parts <= report.wrong_counts.keys() and not report.is_clean
    assert checked(disk).is_clean, "what the start has put right is right"


@pytest.mark.trial(short=6, long=400)
def test_the_start_reports_only_the_checked_findings_after_a_kill(seed: int) -> None:
    random = Random(seed)
    disk = stopped(killed=seed % 2 == 0).killed()
    cases = random.sample(sorted(CASES), random.randint(1, 3))
    for case in cases:
        # What another one has taken away already cannot be damaged.
        with suppress(OSError, LookupError, StopIteration, AssertionError, ValueError):
            CASES[case][0](disk)
    report = checked(disk)
    named = {each.text for each in report.findings if each.is_wrong}
    said = said_by_a_start(disk)
    assert said <= named, f"{cases}: the start says {said - named}, the check {named}"
