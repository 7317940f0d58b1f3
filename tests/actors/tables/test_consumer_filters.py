"""Tests of actors/tables/consumer_filters.py: expressions of groups, and what the file keeps."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from actors.config import BrokerConfig
from actors.engine.interfaces import SnapshotRef
from actors.engine.supervisor import ChildSpec
from actors.network.messages import Request
from actors.tables.config_writer import ConfigWriter
from actors.tables.consumer_filters import REGISTERED_CHARS, SAVE_MS, TURN_CHARS, FilterTable
from actors.tables.messages import RegisterFilters, UnregisterFilters
from protocol.bodies import ConsumerData, SubscriptionData
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from storage.files.disk import Disk
from storage.tables.consumer_filters import ConsumerFilter, ConsumerFilters, parse_filters
from tests.support.peers import RecordingPeer, simulated
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedClock, SimulatedSystem

PATH = "/store/config/consumerFilter.json"
CONFIG = BrokerConfig(broker_name="broker-a")
DAY_MS = 86_400_000
BORN_MS = 1234
"""Time from the first start to the filter's registration; all starts are at one time."""


class Bench:
    """The table in a system, and what it has published."""

    def __init__(self, system: SimulatedSystem, filters: SnapshotRef[ConsumerFilters]) -> None:
        self.system, self.filters = system, filters

    def register(self, *subscriptions: SubscriptionData, group: str = "G") -> RemotingCommand:
        """The heartbeat of a group; gives its answer."""
        peer = RecordingPeer()
        request = Request(RemotingCommand(RequestCode.HEART_BEAT), peer)
        data = ConsumerData(group, None, None, None, list(subscriptions))
        self.system.address("consumer_filters").tell(RegisterFilters([data], request))
        self.system.drain()
        (answer,) = peer.received
        return answer

    def unregister(self, group: str = "G") -> None:
        self.system.address("consumer_filters").tell(UnregisterFilters(group))
        self.system.drain()

    def get(self, topic: str = "T", group: str = "G") -> ConsumerFilter:
        found = self.filters.value.get(topic, group)
        assert found is not None
        return found

    def in_file(self) -> ConsumerFilters:
        return parse_filters(self.system.disk.read_bytes(PATH).decode(), CONFIG.bloom)


@contextmanager
def table(
    disk: Disk | None = None,
    *,
    clean: bool = True,
    published: ConsumerFilters | None = None,
    config: BrokerConfig = CONFIG,
) -> Iterator[Bench]:
    filters = SnapshotRef(published or ConsumerFilters(config.bloom))
    with simulated(disk) as system:
        system.start(
            ChildSpec("config_writer", lambda _: ConfigWriter()),
            ChildSpec(
                "consumer_filters",
                lambda _: FilterTable(
                    config,
                    PATH,
                    filters=filters,
                    was_stopped_cleanly=clean,
                    config_writer=system.address("config_writer"),
                ),
            ),
        )
        system.drain()
        yield Bench(system, filters)


def sql(expression: str, version: int = 1, *, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(topic, expression, sub_version=version, expression_type="SQL92")


def test_a_heartbeat_is_answered_after_its_expression_is_published() -> None:
    with table() as bench:
        answer = bench.register(sql("a > 5", 7), SubscriptionData("%RETRY%G"))
        assert (answer.code, answer.fields, answer.remark) == (0, None, None)
        found = bench.get()
        assert (found.expression, found.client_version) == ("a > 5", 7)
        assert found.positions == CONFIG.bloom.positions("G", "T")
        assert found.born_ms == bench.system.clock.now_ms() and not found.is_dead
        assert bench.filters.value.get("%RETRY%G", "G") is None


def test_a_filter_is_born_when_it_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bit maps of messages from before do not show it, and later ones are believed."""
    monkeypatch.setattr("actors.tables.consumer_filters.TURN_CHARS", 1)
    with table() as bench:
        data = ConsumerData("G", None, None, None, [sql("b > 1"), sql("b > 2", topic="U")])
        request = Request(RemotingCommand(RequestCode.HEART_BEAT), RecordingPeer())
        bench.system.address("consumer_filters").tell(RegisterFilters([data], request))
        clock, born_ms = bench.system.clock, list[int]()
        assert isinstance(clock, SimulatedClock)
        while len(bench.filters.value) < 2:
            stepped_ms = clock.now_ms()
            assert bench.system.loop.step()
            if len(bench.filters.value) > len(born_ms):
                born_ms.append(stepped_ms)
            clock.wind_to(clock.monotonic_ms() + 1)
        assert [each.born_ms for each in bench.filters.value] == born_ms


def test_a_snapshot_is_immutable_and_an_equal_heartbeat_publishes_none() -> None:
    with table() as bench:
        bench.register(sql("a > 5"))
        first = bench.filters.value
        bench.register(sql("a > 5"))
        assert bench.filters.value is first
        bench.register(sql("a > 6", 2))
        assert [each.expression for each in first] == ["a > 5"]
        assert bench.get().expression == "a > 6"


def test_a_filter_of_a_departed_group_is_dead_until_it_returns() -> None:
    with table() as bench:
        bench.register(sql("a > 5"))
        bench.system.advance(1000)
        bench.unregister()
        assert bench.get().is_dead
        bench.register(sql("a > 5", 2))
        assert not bench.get().is_dead and bench.get().client_version == 2


def test_unsubscribing_or_a_tag_filter_ends_the_sql_filter() -> None:
    with table() as bench:
        bench.register(sql("a > 5"), sql("a > 5", topic="U"))
        bench.register(SubscriptionData("T", "x", sub_version=2))
        assert bench.get("U").is_dead
        assert not bench.get("T").is_dead, "as 4.9.7: its topic is subscribed still"


def test_an_invalid_expression_removes_the_previous_filter() -> None:
    with table() as bench:
        bench.register(sql("a > 5"))
        bench.register(sql("a >", 2))
        assert bench.filters.value.get("T", "G") is None


def test_many_filters_of_a_heartbeat_are_taken_in_several_rounds() -> None:
    with table() as bench:
        bench.register(sql("a > 5", topic="First"))
        in_a_turn = TURN_CHARS // REGISTERED_CHARS
        peer, count = RecordingPeer(), 3 * in_a_turn
        request = Request(RemotingCommand(RequestCode.HEART_BEAT), peer)
        wanted = [sql("a > 5", topic=f"T{n}") for n in range(count)]
        data = ConsumerData("G", None, None, None, wanted)
        bench.system.address("consumer_filters").tell(RegisterFilters([data], request))
        steps = 0
        while not peer.received:
            bench.system.loop.step()
            steps += 1
        assert steps >= 3 and len(bench.filters.value) == count + 1
        assert bench.get("First").is_dead


def test_the_filter_file_is_saved_every_ten_seconds_and_at_the_stop() -> None:
    disk = FakeDisk()
    with table(disk) as bench:
        bench.system.advance(2 * SAVE_MS)
        assert not disk.exists(PATH), "nothing to say"
        bench.register(sql("a > 5"))
        assert not disk.exists(PATH)
        bench.system.advance(SAVE_MS)
        assert [each.expression for each in bench.in_file()] == ["a > 5"]
        bench.register(sql("a > 6", 2))
    with table(disk) as bench:
        found = bench.get()
        assert (found.expression, found.client_version) == ("a > 6", 2)
        assert found.is_dead, "no consumer is connected yet"


def test_a_filter_dead_for_a_day_is_removed_from_the_file() -> None:
    disk = FakeDisk()
    with table(disk) as bench:
        bench.register(sql("a > 5"))
        bench.register(sql("a > 5"), group="H")
        bench.unregister()
        bench.system.advance(DAY_MS - 2 * SAVE_MS)
        assert len(bench.filters.value) == 2
        bench.system.advance(3 * SAVE_MS)
        assert [each.group for each in bench.filters.value] == ["H"]
        assert [each.group for each in bench.in_file()] == ["H"]


def saved(expression: str = "a > 5") -> FakeDisk:
    """A disk with one group's filter in the file."""
    disk = FakeDisk()
    with table(disk) as bench:
        bench.system.advance(BORN_MS)
        bench.register(sql(expression))
    return disk


def set_bytes(disk: FakeDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.set_size(0)
    file.pwrite(data, 0)
    file.sync()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\0" * 300,
        b"\xff\xfe{",
        b'{"filterDataByTopic":',
        b'{"filterDataByTopic":[1]}',
        b'{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bornTime":1e9}}}}}',
        b'{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bloomFilterData":7}}}}}',
        b"[" * 5000,
    ],
)
def test_a_damaged_filter_file_does_not_prevent_a_start_and_is_rewritten(damaged: bytes) -> None:
    disk = saved()
    for name in disk.listdir("/store/config"):
        set_bytes(disk, f"/store/config/{name}", damaged)
    with table(disk) as bench:
        assert len(bench.filters.value) == 0
        bench.register(sql("a > 6", 2))
    with table(disk) as bench:
        assert bench.get().expression == "a > 6"


def test_any_flipped_bit_is_survived() -> None:
    disk = saved()
    size = len(disk.read_bytes(PATH))
    for position in range(0, size, 7):
        hit = disk.killed()
        data = bytearray(hit.read_bytes(PATH))
        data[position] ^= 1 << position % 8
        set_bytes(hit, PATH, bytes(data))
        with table(hit) as bench:
            assert bench.get().expression == "a > 5"


def test_an_expression_in_the_file_that_does_not_compile_waits_for_its_group() -> None:
    disk = saved()
    text = disk.read_bytes(PATH).replace(b"a > 5", b"a > >")
    for name in disk.listdir("/store/config"):
        disk.unlink(f"/store/config/{name}")
    set_bytes(disk, PATH, text)
    with table(disk) as bench:
        assert len(bench.filters.value) == 0


def test_a_changed_bit_map_size_registers_all_groups_again() -> None:
    disk = saved()
    with table(disk, config=BrokerConfig(broker_name="b", expected_filter_count=64)) as bench:
        assert len(bench.filters.value) == 0


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_crash_earlier_bit_maps_are_ignored(clean: bool) -> None:
    """The file may be older than the expression by which those bits were made."""
    disk = saved()
    with table(disk, clean=clean) as bench:
        now_ms = bench.system.clock.now_ms()
        assert bench.get().born_ms == (now_ms + BORN_MS if clean else now_ms)


def test_a_restarted_actor_continues_from_its_snapshot() -> None:
    known = ConsumerFilters(CONFIG.bloom)
    known.register("T", "G", "a > 9", "SQL92", 3, 1)
    disk = saved()
    with table(disk, published=known) as bench:
        assert bench.get().expression == "a > 9"
        bench.system.advance(SAVE_MS)
        assert [each.expression for each in bench.in_file()] == ["a > 9"]
