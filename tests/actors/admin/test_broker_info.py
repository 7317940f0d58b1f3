"""Tests of actors/admin/broker_info.py: what an administrator learns of a broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from json import loads

from actors.admin.broker_info import BrokerInfo, _bytes_text, _span_text
from actors.config import BrokerConfig
from actors.dispatching.reput import DispatchProgress
from actors.engine.interfaces import SnapshotRef
from actors.engine.supervisor import ChildSpec
from actors.retention.retention_holds import KeepingReport
from actors.scrubbing.scrubber import ScrubFigures
from actors.statistics.counts import PUT_BOUNDS_MS, PullStats, PutStats, TimerFigures
from actors.tables.offset_limits import OffsetStats
from actors.tables.tables import Tables
from protocol.bloom import BloomFilter
from protocol.bodies_own import ActorList
from protocol.bodies_tables import KVTable, SubscriptionGroupConfig, TopicConfig
from protocol.codes import RequestCode
from storage.config import StoreConfig
from storage.message_store import MessageStore
from storage.recovery.recovery import RecoveryReport
from tests.support.brokers import SimulatedBroker
from tests.support.golden import frames
from tests.support.peers import ask, request, simulated
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem


@dataclass
class Sources:
    """The parts of a broker that BrokerInfo reads."""

    store: MessageStore
    system: SimulatedSystem
    config: BrokerConfig = field(default_factory=lambda: BrokerConfig(broker_name="broker-a"))
    put_stats: PutStats = field(default_factory=PutStats)
    pull_stats: PullStats = field(default_factory=PullStats)
    timer_figures: TimerFigures = field(default_factory=TimerFigures)
    following: DispatchProgress = field(default_factory=lambda: DispatchProgress(0))
    kept: SnapshotRef[KeepingReport] = field(default_factory=lambda: SnapshotRef(KeepingReport()))
    offset_stats: OffsetStats = field(default_factory=OffsetStats)
    tables: Tables = field(default_factory=lambda: Tables(BloomFilter.of()))
    recovery: RecoveryReport = field(default_factory=RecoveryReport)
    scrubbed: SnapshotRef[ScrubFigures] = field(default_factory=lambda: SnapshotRef(ScrubFigures()))


@contextmanager
def broker_info() -> Iterator[tuple[SimulatedSystem, Sources]]:
    with simulated(FakeDisk()) as system:
        config = StoreConfig(
            root="/store",
            commit_log_file_bytes=65536,
            consume_queue_file_bytes=6000,
            max_hash_slots=64,
            max_index_entries=200,
        )
        store = MessageStore(config, system.disk, system.clock)
        store.open()
        sources = Sources(store, system)
        system.start(ChildSpec("broker_info", lambda _: BrokerInfo(sources)))
        yield system, sources
        store.close()


def figures(system: SimulatedSystem) -> dict[str, str]:
    answer = ask(system, "broker_info", request(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert (answer.code, answer.fields) == (0, None)
    return KVTable.decode(answer.body).table


def test_all_keys_that_clusterlist_reads_are_present() -> None:
    with broker_info() as (system, _):
        found = figures(system)
    read = (
        "brokerVersionDesc",
        "putTps",
        "getTransferedTps",
        "sendThreadPoolQueueSize",
        "pullThreadPoolQueueSize",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueHeadWaitTimeMills",
        "pageCacheLockTimeMills",
        "earliestMessageTimeStamp",
        "commitLogDiskRatio",
        "msgPutTotalYesterdayMorning",
        "msgPutTotalTodayMorning",
        "msgPutTotalTodayNow",
        "msgGetTotalYesterdayMorning",
        "msgGetTotalTodayMorning",
        "msgGetTotalTodayNow",
    )
    assert set(read) <= found.keys()
    assert found["brokerVersionDesc"] == "V4_9_7"
    assert found["earliestMessageTimeStamp"] == "-1"
    assert all(float(tps) == 0 for tps in found["putTps"].split(" "))


OURS = {
    "logLeases",
    "oldLogFilesStayFor",
    "subscriptionMismatchGroups",
    "ignoredOffsetCommits",
    "pullHeldTimesTotal",
    "pullColdTimesTotal",
    "pullDoubtTimesTotal",
}


def test_every_key_is_one_of_the_original_or_a_listed_extension() -> None:
    original = next(each for each in frames("java-4.9.7") if each.get("request_code") == 28)
    theirs = KVTable.decode(original["body"]).table.keys()
    with broker_info() as (system, sources):
        sources.tables.delay_offsets.value = {1: 4, 2: 1, 4: 2}
        found = figures(system)
    assert found["scheduleMessageOffset_1"] == "4,0"
    path = "commitLogDiskRatio_"  # and the folder of the log
    assert {key for key in found if not key.startswith(path)} == OURS | {
        key for key in theirs if not key.startswith(path)
    }
    assert not OURS & theirs


def test_put_durations_are_those_of_the_last_whole_minute() -> None:
    with broker_info() as (system, sources):
        found = figures(system)
        assert (found["putMessageDistributeTime"], found["putLatency99"]) == ("null", "0.00")
        puts = sources.put_stats
        puts.durations[PUT_BOUNDS_MS.index(1)], puts.durations[PUT_BOUNDS_MS.index(50)] = 98, 2
        puts.longest_put_ms = 20_000
        system.advance(60_000)
        found = figures(system)
        assert found["putMessageDistributeTime"].startswith(
            "[<=0ms]:0 [0~10ms]:98 [10~50ms]:2 [50~100ms]:0 "
        )
        assert found["putMessageDistributeTime"].endswith("[10s~]:0 ")
        assert (found["putLatency99"], found["putLatency999"]) == ("40.00", "49.00")
        assert found["putMessageEntireTimeMax"] == "20000"
        system.advance(60_000)
        assert figures(system)["putLatency99"] == "0.00"


def test_delayed_pulls_are_counted_by_reason() -> None:
    with broker_info() as (system, sources):
        stats = sources.pull_stats
        stats.held_count, stats.cold_count, stats.doubt_count = 3, 2, 1
        found = figures(system)
    assert [found[f"pull{why}TimesTotal"] for why in ("Held", "Cold", "Doubt")] == ["3", "2", "1"]


def test_disk_ratios_are_whole_hundredths_rounded_up_as_in_4_9_7() -> None:
    with broker_info() as (system, _):
        disk = system.disk
        assert isinstance(disk, FakeDisk)
        disk.usage = 0.4001
        found = figures(system)
    assert found["commitLogDiskRatio"] == found["consumeQueueDiskRatio"] == "0.41"
    assert found["commitLogDiskRatio_/store/commitlog"] == "0.41"


def test_throughput_is_measured_over_the_last_seconds() -> None:
    with broker_info() as (system, sources):
        for _ in range(20):
            sources.put_stats.put_count += 50
            sources.put_stats.put_bytes += 5000
            sources.pull_stats.get_count += 20
            sources.pull_stats.found_count += 4
            sources.pull_stats.miss_count += 6
            system.advance(1000)
        found = figures(system)
    assert found["putTps"] == "50.0 50.0 50.0"
    assert found["getFoundTps"] == "4.0 4.0 4.0"
    assert found["getMissTps"] == "6.0 6.0 6.0"
    assert found["getTotalTps"] == "10.0 10.0 10.0"
    assert found["getTransferedTps"] == "20.0 20.0 20.0"
    assert found["putMessageTimesTotal"] == found["msgPutTotalTodayNow"] == "1000"
    assert found["putMessageAverageSize"] == "100.0"
    assert found["runtime"] == "[ 0 days, 0 hours, 0 minutes, 20 seconds ]"


def test_5_x_finds_its_own_spelling_of_a_rate() -> None:
    with broker_info() as (system, _):
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        new, old = (
            KVTable.decode(ask(system, "broker_info", request(code, version=each)).body).table
            for each in (412, 411)
        )
        assert new.keys() - old.keys() == {"getTransferredTps"}


def test_human_readable_figures_are_formatted_as_in_4_9_7() -> None:
    assert _span_text(14_000) == "[ 0 days, 0 hours, 0 minutes, 14 seconds ]"
    assert _span_text(90_061_000) == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert [_bytes_text(n) for n in (0, 185, 1024, 1536, 1 << 30)] == [
        "0 B",
        "185 B",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 GiB",
    ]


def test_rocketmq_5_tools_can_query_one_topic_and_one_group() -> None:
    made = SimulatedBroker(1)
    made.make_topic(queues=3)
    made.make_group(retry_max_times=7)
    topic = made.ask(request(RequestCode.GET_TOPIC_CONFIG, {"topic": "Topic", "lo": "true"}))
    assert topic.code == 0
    assert loads(bytes(topic.body or b""))["topicName"] == "Topic"
    assert TopicConfig.decode(topic.body).read_queue_nums == 3
    group = made.ask(request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "consumers"}))
    assert SubscriptionGroupConfig.decode(group.body).retry_max_times == 7
    missing = made.ask(request(RequestCode.GET_TOPIC_CONFIG, {"topic": "Nowhere"}))
    assert (missing.code, missing.remark) == (17, "No topic in this broker. topic: Nowhere")
    missing = made.ask(request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "nobody"}))
    assert (missing.code, missing.remark) == (26, "No group in this broker")


def test_actors_are_listed_with_inbox_depth_and_restarts() -> None:
    made = SimulatedBroker(2)
    made.system.address("pull_hold").tell(object())  # it fails at it
    made.system.advance(5000)
    found = ActorList.decode(made.ask(request(RequestCode.GET_ACTORS)).body)
    lines = {each.name: each for each in found.actors}
    assert (found.longest_actor == "") == (made.system.loop.longest.actor == "")
    assert (lines["pull_hold"].restarts, lines["put_message"].restarts) == (1, 0)
    assert lines["pull_hold"].is_up and lines["put_message"].inbox == 0
    assert lines["broker_info"].handled > 0
