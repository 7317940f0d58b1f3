"""Attempts on name servers, A35 and A36.

The name servers here have no access control: these limits hold without it as well. With it only
brokers reach them (H14, H15).
"""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from gc import collect
from random import Random
from time import process_time
from zlib import compress, decompress

import pytest
from structlog.testing import capture_logs

from actors.naming import kv_server, registration_reader, route_table, table_limits
from protocol.bodies import TopicRouteData
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.frame import HEADER_BYTES_MAX, RemotingCommand
from protocol.headers.namesrv import BrokerIdentityHeader, RegisterBrokerHeader
from tests.support.open_namesrv import OpenNamesrv, topics
from tests.support.told import times

LETTERS = [f"-topic-{number}" for number in range(30)]


@pytest.fixture
def namesrv() -> Iterator[OpenNamesrv]:
    made = OpenNamesrv()
    yield made
    assert made.system.stop(30)


def test_a35_client_settings_are_limited(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_server, "KV_NAMESPACES_MAX", 20)
    assert namesrv.put("n", "k", "v" * 1000) == 0
    with capture_logs() as logs:
        assert namesrv.put("n", "k" * 5000, "v") == 1
        assert namesrv.put("n" * 5000, "k", "v") == 1
        assert namesrv.put("n", "k", "v" * (table_limits.KV_VALUE_CHARS_MAX + 1)) == 1
        assert times(logs, kv_server.TOO_MUCH) == [1]
        namesrv.system.advance(70_000)
    assert times(logs, kv_server.TOO_MUCH) == [1, 2]
    first, *_ = logs
    assert (first["peer"], first["code"]) == (namesrv.peer.remote, Code.PUT_KV_CONFIG)
    assert first["why"] == "namespace and key have at most 4096 characters"
    assert HEADER_BYTES_MAX <= table_limits.KV_VALUE_CHARS_MAX, "no header holds more"
    codes = [namesrv.put(f"n{number}", "k", "v") for number in range(30)]
    assert codes == [0] * 19 + [1] * 11
    got = namesrv.ask(Code.GET_KV_CONFIG, {"namespace": "n", "key": "k"})
    assert (got.fields or {})["value"] == "v" * 1000


def test_a35_an_invalid_address_is_refused(namesrv: OpenNamesrv) -> None:
    with capture_logs() as logs:
        for address in ("x\n:1", "x", "a b:1", "", "x:1;y:2", "x:1\n", "x" * 5000 + ":1"):
            assert namesrv.register("broker-a", address).code == 1
        for name in ("b" * 2000,):
            assert namesrv.register(name, "10.0.0.1:10911").code == 1
        assert times(logs, "broker address rejected") == [1]
        namesrv.system.advance(70_000)
    assert sum(times(logs, "broker address rejected")) == 6
    assert sum(times(logs, "name limit exceeded")) == 2 and len(logs) == 4
    assert namesrv.brokers() == {} and namesrv.topics() == []


def test_a35_a_second_broker_of_a_name_is_logged(namesrv: OpenNamesrv) -> None:
    """Without accounts the name server cannot tell which of two is the right one: the log reports
    it.
    """
    assert namesrv.register("broker-a", "10.0.0.1:10911").code == 0
    with capture_logs() as logs:
        namesrv.register("broker-a", "10.0.0.2:10911")
        for n in range(3, 90):
            namesrv.register("broker-a", f"10.0.0.{n}:10911")
        (first,) = [each for each in logs if each["log_level"] == "warning"]
        namesrv.system.advance(70_000)
    assert "broker identity duplicated" in str(first["event"])
    assert first["addresses"] == ["10.0.0.1:10911", "10.0.0.2:10911"]
    assert times(logs, first["event"]) == [1, 87]


def test_a35_without_accounts_any_broker_may_take_an_address_as_in_4_9_7(
    namesrv: OpenNamesrv,
) -> None:
    assert namesrv.register("broker-a", "10.0.0.1:10911").code == 0
    namesrv.peer = namesrv.client("198.51.100.2")
    assert namesrv.register("broker-b", "10.0.0.1:10911").code == 0
    gone = BrokerIdentityHeader("broker-c", "10.0.0.1:10911", "DefaultCluster", 0)
    assert namesrv.ask(Code.UNREGISTER_BROKER, gone.encode()).code == 0


def test_a35_administration_only_from_named_addresses() -> None:
    made = OpenNamesrv(admin_allowed_addresses="10.0.0.7")
    assert made.put("n", "k", "v") == ResponseCode.NO_PERMISSION
    assert made.ask(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "x"}).code == 16
    assert made.register("broker-a", "10.0.0.1:10911").code == 0
    made.peer = made.client("10.0.0.7")
    assert made.put("n", "k", "v") == 0
    assert made.system.stop(30)


def test_a36_brokers_of_one_connection_are_limited(namesrv: OpenNamesrv) -> None:
    with capture_logs() as logs:
        codes = [namesrv.register(f"b{n}", f"10.0.0.1:{n}").code for n in range(1, 300)]
    assert times(logs, "broker limit of a connection reached") == [1]
    assert codes.count(0) == table_limits.BROKERS_OF_PEER_MAX
    names = [namesrv.register(f"other-{n}", "10.0.0.1:1").code for n in range(300)]
    assert names.count(0) < table_limits.BROKERS_OF_PEER_MAX
    assert len(namesrv.brokers()) < 2 * table_limits.BROKERS_OF_PEER_MAX
    with capture_logs() as logs:
        namesrv.peer.close()
        namesrv.system.drain()
    namesrv.peer = namesrv.client()
    assert namesrv.brokers() == {}, "they go with it"
    (gone,) = [each for each in logs if each["log_level"] == "warning"]
    assert gone["event"] == "broker connection closed"
    assert gone["names"] == [f"10.0.0.1:{n}" for n in range(1, 11)]
    assert gone["times"] == table_limits.BROKERS_OF_PEER_MAX


def test_a36_names_at_one_address_are_limited_if_others_have_them_too(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 addresses with 10,000 names each were 100 million entries."""
    monkeypatch.setattr(table_limits, "BROKERS_OF_PEER_MAX", 10)
    for number in range(20):
        namesrv.peer = namesrv.client(f"198.51.100.{number}")
        assert namesrv.register(f"b{number}", f"10.0.0.1:{number + 1}").code == 0
    header = RegisterBrokerHeader("", "10.0.0.1:1", "DefaultCluster", "10.0.0.1:2", 7)
    asked = [replace(header, broker_name=f"b{number}").encode() for number in range(20)]
    codes = [namesrv.ask(Code.REGISTER_BROKER, each, topics("Orders")).code for each in asked]
    assert codes == [0] * 10 + [1] * 10, "b0 has the address already"
    codes = [namesrv.ask(Code.REGISTER_BROKER, each, topics("Orders")).code for each in asked[:10]]
    assert codes == [0] * 10, "those that are there go on"


def test_all_brokers_that_leave_are_logged(namesrv: OpenNamesrv) -> None:
    """The first at once, the others as one line when its minute is over."""
    brokers = []
    for n in range(4):
        namesrv.peer = namesrv.client(f"10.0.0.{n}")
        assert namesrv.register(f"b{n}", f"10.0.0.{n}:1").code == 0
        brokers.append(namesrv.peer)
    with capture_logs() as logs:
        for broker in brokers:
            broker.close()
            namesrv.system.advance(1000)
        namesrv.system.advance(70_000)
    told = [(each["names"], each["times"]) for each in logs if each["log_level"] == "warning"]
    assert told == [(["10.0.0.0:1"], 1), (["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"], 3)]


def test_a36_the_total_number_of_brokers_is_limited(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_limits, "BROKERS_MAX", 30)
    codes = []
    with capture_logs() as logs:
        for number in range(50):
            namesrv.peer = namesrv.client(f"198.51.100.{number}")
            codes.append(namesrv.register(f"b{number}", f"10.0.0.1:{number + 1}").code)
        assert times(logs, "broker limit reached") == [1]
        namesrv.system.advance(70_000)
    assert times(logs, "broker limit reached") == [1, 19]
    assert codes == [0] * 30 + [1] * 20
    namesrv.peer = namesrv.client("198.51.100.3")
    assert namesrv.register("b3", "10.0.0.1:4").code == 0, "those that are there go on"


def test_a36_topics_are_limited(namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "TOPICS_MAX", 500)
    monkeypatch.setattr(table_limits, "TOPICS_OF_BROKER_MAX", 2000)
    assert namesrv.register("a", "10.0.0.1:1", topics(*(f"a{n}" for n in range(300)))).code == 0
    namesrv.register("b", "10.0.0.2:1", topics(*(f"b{n}" for n in range(1000))))
    assert len(namesrv.topics()) == 500
    with capture_logs() as logs:
        for _ in range(5):
            many = namesrv.register("c", "10.0.0.3:1", topics(*(f"c{n}" for n in range(3000))))
    assert times(logs, "registration refused") == [1]
    assert (many.code, many.remark) == (1, "the broker has 3000 topics, more than 2000")
    assert "c" not in namesrv.brokers()
    assert namesrv.register("d", "10.0.0.4:1").code == 0


def test_a36_shared_topics_count_for_each_broker(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand brokers with the same topics are no fewer bytes."""
    monkeypatch.setattr(route_table, "TOPICS_OF_ALL_MAX", 50)
    names = [f"t{n}" for n in range(20)]

    def brokers_of(topic: str) -> int:
        answer = namesrv.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return len(TopicRouteData.decode(answer.body).queue_datas) if answer.code == 0 else 0

    def register(number: int) -> int:
        body = topics(*names)
        assert namesrv.register(f"b{number}", f"10.0.0.1:{number}", body).code == 0
        return sum(brokers_of(name) for name in names)

    assert [register(number) for number in range(1, 5)] == [20, 40, 50, 50]
    assert register(1) == 50, "those that are there go on"
    gone = BrokerIdentityHeader("b2", "10.0.0.1:2", "DefaultCluster", 0)
    assert namesrv.ask(Code.UNREGISTER_BROKER, gone.encode()).code == 0
    assert namesrv.ask(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "t0"}).code == 0
    names.remove("t0")
    assert sum(map(brokers_of, names)) == 19 + 9
    assert register(5) == 19 + 9 + 19, "there is room again"


@pytest.mark.parametrize("compressed", [False, True])
def test_a36_names_and_filter_servers_are_limited(namesrv: OpenNamesrv, compressed: bool) -> None:
    long = "x" * table_limits.TOPIC_CHARS_MAX
    body = topics("Orders", long, long + "x", compressed=compressed)
    assert namesrv.register("a", "10.0.0.1:1", body, compressed=compressed).code == 0
    assert sorted(namesrv.topics()) == ["Orders", long]
    for count, more in ((101, 0), (101, 3000), (1, 0)):
        servers = ["10.0.0.1:1" if count > 1 else "f" * 2000] * count
        names = [f"t{n}" for n in range(more)]
        body = topics("Orders", *names, compressed=compressed, servers=servers)
        refused = namesrv.register("b", "10.0.0.2:1", body, compressed=compressed)
        assert (refused.code, (refused.remark or "")[:23]) == (1, "at most 100 filter serv")
    assert "b" not in namesrv.brokers()
    body = topics("Orders", compressed=compressed, servers=["10.0.0.1:1"] * 100)
    assert namesrv.register("b", "10.0.0.2:1", body, compressed=compressed).code == 0


def test_a36_a_registration_with_high_compression_delays_no_other_client(
    namesrv: OpenNamesrv,
) -> None:
    """2 KiB may hold some 35,000 topics: a quarter of a second."""
    reader = namesrv.system.address("registration_reader")
    usual = topics(*(f"topic-{n}" for n in range(100)), compressed=True)
    assert namesrv.register("a", "10.0.0.1:1", usual, compressed=True).code == 0
    assert reader.handled == 0
    bomb = topics("x" * 500, *("y" * n for n in range(100, 500)), compressed=True)
    assert len(bomb) <= registration_reader.LARGE_COMPRESSED_BYTES
    assert namesrv.register("b", "10.0.0.2:1", bomb, compressed=True).code == 0
    assert reader.handled == 1


def most_bytes(work: Callable[[], None]) -> tuple[int, int]:
    """Return the most memory in use meanwhile, and the memory retained."""
    tracemalloc.start()
    try:
        work()
        _, most = tracemalloc.get_traced_memory()
        gc.collect()  # what waits for the collector is not left
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return most, left


def test_a36_invented_brokers_are_removed_completely(namesrv: OpenNamesrv) -> None:
    """A thousand a minute over connections that come and go."""

    def invent(brokers: int) -> None:
        for number in range(brokers):
            if number % 20 == 0:
                namesrv.peer.close()
                namesrv.peer = namesrv.client(f"198.51.100.{number}")
            body = topics(*(f"topic-{number}-{n}-{'x' * 100}" for n in range(10)))
            assert namesrv.register(f"b{number}", f"10.0.0.1:{number + 1}", body).code == 0
        namesrv.peer.close()
        namesrv.system.drain()
        namesrv.peer = namesrv.client()
        assert namesrv.brokers() == {} and namesrv.topics() == []

    invent(20)
    most, left = most_bytes(lambda: invent(60))
    assert most < 500 << 10, "twenty at a time, with 200 topics"
    assert left < 150 << 10, "lines of the log"


@pytest.mark.parametrize("compressed", [False, True])
def test_a36_topics_are_counted_before_they_are_created(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    monkeypatch.setattr(table_limits, "TOPICS_OF_BROKER_MAX", 2000)
    if compressed:
        body = topics(*(f"{n:x}" for n in range(20_000)), compressed=True)
    else:
        entries = ",".join(f'"{n:x}":{{"topicName":"{n:x}"}}' for n in range(20_000))
        body = f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{{entries}}}}}}}'.encode()
    plain_bytes = len(decompress(body)) if compressed else len(body)
    answers: list[RemotingCommand] = []
    most, _ = most_bytes(
        lambda: answers.append(namesrv.register("a", "10.0.0.1:1", body, compressed=compressed))
    )
    assert (answers[0].code, answers[0].remark) == (
        1,
        "the broker has 20000 topics, more than 2000",
    )
    assert most < 3 * plain_bytes + (1 << 20)


def test_a36_pending_registrations_are_limited(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(registration_reader, "READING_BYTES_MAX", 1 << 20)
    body = topics(*(f"topic-{n:0200}" for n in range(1000)))
    codes: list[int] = []
    for number in range(10):
        header = RegisterBrokerHeader(f"b{number}", "10.0.0.1:1", "C", "10.0.0.1:1", 0)
        command = RemotingCommand(Code.REGISTER_BROKER, header.encode(), body, version=407)
        namesrv.client(f"198.51.100.{number}").start(
            command, lambda answer: codes.append(answer.code)
        )
    namesrv.system.drain()
    namesrv.system.advance(60_000)
    assert len(codes) == 10
    assert 0 < codes.count(ResponseCode.SYSTEM_BUSY) < 10
    assert namesrv.register("last", "10.0.0.9:1", body).code == 0, "there is room again"


def test_a36_a_decompression_bomb_is_refused(namesrv: OpenNamesrv) -> None:
    bomb = compress(bytes((64 << 20) + 1), 1)
    assert namesrv.register("a", "10.0.0.1:1", bomb, compressed=True).code == 1
    assert namesrv.brokers() == {}


def test_a36_a_compressed_registration_of_millions_is_refused_before_it_is_read(
    namesrv: OpenNamesrv,
) -> None:
    """A registration of 4 MiB took 25 s of processor time and 250 MiB."""
    head = b"\0\0\0\x02{}" + (2_000_000).to_bytes(4)
    worked_s = process_time()
    for lines, remark in (
        (Random(1).randbytes(200 << 10), "the broker has 2000000 topics, more than 500000"),
        (bytes(8 << 20), "java.io.IOException: zlib data is longer than 4688000 bytes"),
    ):
        data = compress(head + lines, 1)
        answer = namesrv.register("a", "10.0.0.1:1", data, compressed=True)
        assert (answer.code, answer.remark) == (1, remark)
    assert process_time() - worked_s < 1
    assert namesrv.brokers() == {}


def test_a36_refused_or_finished_registrations_are_not_kept(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times as many brokers and topics as there are places, and they take no more."""
    monkeypatch.setattr(table_limits, "BROKERS_MAX", 6)
    monkeypatch.setattr(route_table, "TOPICS_MAX", 100)

    def invent(turn: int) -> None:
        for number in range(8):
            name = f"{turn}-{number}"
            namesrv.register(name, f"10.0.0.1:{number + 1}", topics(*map(name.__add__, LETTERS)))
        namesrv.peer.close()
        namesrv.system.drain()
        namesrv.peer = namesrv.client()

    with capture_logs() as logs:
        for turn in range(3):
            invent(turn)
        logs.clear()
        tracemalloc.start()
        try:
            for turn in range(3, 13):
                invent(turn)
                logs.clear()
            collect()
            more_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert more_bytes < 1 << 18
    assert namesrv.brokers() == {}
