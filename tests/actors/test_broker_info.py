"""Tests of actors/broker_info.py: what an administrator learns of a broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from actors.broker_info import BrokerInfo, _bytes_text, _span_text
from actors.config import BrokerConfig
from actors.pull_message import PullStats
from actors.put_stats import PutStats
from actors.reput import Following
from actors.supervisor import ChildSpec
from actors.system import ActorSystem
from protocol.bodies import KVTable
from protocol.codes import RequestCode
from storage.config import StoreConfig
from storage.message_store import MessageStore
from tests.support.fake_disk import FakeDisk
from tests.support.golden import frames
from tests.support.peers import ask, request, simulated


@dataclass
class Sources:
    """As much of a broker as is needed."""

    store: MessageStore
    config: BrokerConfig = field(default_factory=lambda: BrokerConfig(broker_name="broker-a"))
    put_stats: PutStats = field(default_factory=PutStats)
    pull_stats: PullStats = field(default_factory=PullStats)
    following: Following = field(default_factory=lambda: Following(0))


@contextmanager
def broker_info() -> Iterator[tuple[ActorSystem, Sources]]:
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
        sources = Sources(store)
        system.start(ChildSpec("broker_info", lambda _: BrokerInfo(sources)))
        yield system, sources
        store.close()


def figures(system: ActorSystem) -> dict[str, str]:
    answer = ask(system, "broker_info", request(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert (answer.code, answer.fields) == (0, None)
    return KVTable.decode(answer.body).table


def test_all_that_cluster_list_reads_is_there() -> None:
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


def test_every_figure_is_one_that_the_original_has_too() -> None:
    original = next(each for each in frames("java-4.9.7") if each.get("request_code") == 28)
    theirs = KVTable.decode(original["body"]).table.keys()
    with broker_info() as (system, _):
        ours = figures(system).keys()
    assert {key for key in ours if not key.startswith("commitLogDiskRatio_")} <= theirs


def test_disk_ratios_are_whole_hundredths_rounded_up_as_in_4_9_7() -> None:
    with broker_info() as (system, _):
        disk = system.disk
        assert isinstance(disk, FakeDisk)
        disk.usage = 0.4001
        found = figures(system)
    assert found["commitLogDiskRatio"] == found["consumeQueueDiskRatio"] == "0.41"
    assert found["commitLogDiskRatio_/store/commitlog"] == "0.41"


def test_throughput_is_that_of_the_last_seconds() -> None:
    with broker_info() as (system, sources):
        for _ in range(20):
            sources.put_stats.put_count += 50
            sources.put_stats.put_bytes += 5000
            sources.pull_stats.get_count += 20
            system.advance(1000)
        found = figures(system)
    assert found["putTps"] == "50.0 50.0 50.0"
    assert found["getTransferedTps"] == "20.0 20.0 20.0"
    assert found["putMessageTimesTotal"] == found["msgPutTotalTodayNow"] == "1000"
    assert found["putMessageAverageSize"] == "100.0"
    assert found["runtime"] == "[ 0 days, 0 hours, 0 minutes, 20 seconds ]"


def test_figures_for_people_are_written_as_in_4_9_7() -> None:
    assert _span_text(14_000) == "[ 0 days, 0 hours, 0 minutes, 14 seconds ]"
    assert _span_text(90_061_000) == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert [_bytes_text(n) for n in (0, 185, 1024, 1536, 1 << 30)] == [
        "0 B",
        "185 B",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 GiB",
    ]
