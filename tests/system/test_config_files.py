"""A whole broker whose config files are damaged: it starts, says so, and serves what it stored."""

from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protocol.codes import ResponseCode
from storage.files.disk import RealDisk
from storage.tables.groups import parse_groups
from storage.tables.topics import parse_topics
from tests.support.brokers import SimulatedBroker
from tests.support.golden import store
from troupemq.testing.fake_disk import FakeDisk

TOPIC = "Orders"


def stopped_broker() -> FakeDisk:
    """The disk of a broker that has a topic, a group, and four messages."""
    disk = FakeDisk()
    broker = SimulatedBroker(1, disk)
    broker.make_topic(TOPIC, queues=4)
    broker.make_group("readers", retry_max_times=3)
    for queue_id in range(4):
        assert broker.send(b"%d" % queue_id, topic=TOPIC, queue_id=queue_id).code == 0
    broker.stop()
    return disk


def set_bytes(disk: FakeDisk, path: str, data: bytes) -> None:
    file = disk.open(path)
    file.set_size(0)
    file.pwrite(data, 0)
    file.sync()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: b"\xff\xfe" + data,
    "types": lambda data: data.replace(b":{", b":[1,", 1),
}


@pytest.mark.parametrize("damage", [*DAMAGE, "gone"])
def test_a_broker_without_its_config_files_serves_every_message(damage: str) -> None:
    disk = stopped_broker()
    for name in [name for name in disk.listdir("/store/config") if not name.endswith(".crc")]:
        path = f"/store/config/{name}"
        if damage == "gone":
            disk.unlink(path)
        else:
            set_bytes(disk, path, DAMAGE[damage](disk.read_bytes(path)))
    broker = SimulatedBroker(2, disk)
    for queue_id in range(4):
        answer = broker.pull(0, topic=TOPIC, queue_id=queue_id, hold_ms=1)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert broker.send(b"more", topic=TOPIC, queue_id=3).code == 0
    broker.stop()
    saved = parse_topics(disk.read_bytes("/store/config/topics.json").decode())
    assert saved.topic_configs[TOPIC].write_queue_nums == 4


BAD_ENTRIES = {
    "topics.json": '"Orders":{"perm":6,"readQueueNums":-4,"topicFilterType":"SINGLE_TAG"},'
    '"Empty":{"perm":-3}',
    "subscriptionGroup.json": '"readers":{"retryMaxTimes":99999999999}',
    "consumerOffset.json": '"Orders@readers":{-1:5,2:1}',
    "delayOffset.json": "-2:7",
}


def test_an_invalid_entry_in_every_table_costs_only_itself() -> None:
    """4.9.7 saves such entries unchecked."""
    disk = stopped_broker()
    for name, entry in BAD_ENTRIES.items():
        path = f"/store/config/{name}"
        text = disk.read_bytes(path).decode() if disk.exists(path) else '{"offsetTable":{}}'
        table = text.index("{", text.index("Table"))
        text = text.replace('"Orders":', '"Old":').replace('"readers":', '"old":')
        table = text.index("{", text.index("Table"))
        comma = "," if '"' in text[table:] else ""
        disk.open(path, create=True).set_size(0)
        set_bytes(disk, path, f"{text[: table + 1]}{entry}{comma}{text[table + 1 :]}".encode())
    with capture_logs() as lines:
        broker = SimulatedBroker(2, disk)
        tables = broker.broker.tables
        assert tables.topics.value[TOPIC].read_queue_nums == 4, "it is found by its queues"
        assert "Empty" not in tables.topics.value
        assert tables.topics.value["Old"].read_queue_nums == 4
        assert tables.groups.value["old"].retry_max_times == 3
        assert tables.offsets.value == {"Orders@readers": {2: 1}}
        assert broker.pull(0, topic=TOPIC, queue_id=1, hold_ms=1).code == ResponseCode.SUCCESS
        broker.stop()
    said = [(each["file"], each["entry"]) for each in lines if each["event"] == "entry left out"]
    assert sorted(said) == [
        ("/store/config/consumerOffset.json", "Orders@readers, -1"),
        ("/store/config/delayOffset.json", "-2"),
        ("/store/config/subscriptionGroup.json", "readers"),
        ("/store/config/topics.json", "Empty"),
        ("/store/config/topics.json", "Orders"),
    ]
    for name in BAD_ENTRIES:
        assert disk.exists(f"/store/config/{name}.left-out"), name
    with capture_logs() as lines:
        SimulatedBroker(2, disk).stop()
    assert [each for each in lines if "left out" in each["event"]] == []


@pytest.mark.heavy
def test_a_flipped_bit_in_a_config_file_changes_nothing() -> None:
    disk = stopped_broker()
    size = len(disk.read_bytes("/store/config/subscriptionGroup.json"))
    for position in range(0, size, 97):
        hit = disk.killed()
        hit.flip_bit("/store/config/subscriptionGroup.json", position, position % 8)
        broker = SimulatedBroker(2, hit)
        assert broker.broker.tables.groups.value["readers"].retry_max_times == 3
        broker.stop()
        saved = hit.read_bytes("/store/config/subscriptionGroup.json").decode()
        assert parse_groups(saved).subscription_group_table["readers"].retry_max_times == 3


def test_unchanged_files_of_the_original_survive(tmp_path: Path) -> None:
    disk = FakeDisk()
    golden = store("clean", tmp_path)
    disk.make_dirs("/store/config")
    before = {}
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        before[name] = RealDisk().read_bytes(str(golden / "config" / name))
        disk.open(f"/store/config/{name}", create=True).pwrite(before[name], 0)
    for seed in range(2):
        broker = SimulatedBroker(seed, disk)
        assert broker.send(b"x").code == 0
        broker.stop()
    assert {name: disk.read_bytes(f"/store/config/{name}") for name in before} == before
