"""Tests of actors/naming/namesrv.py: the name server's answers, against those of the original."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from errno import ENOSPC

import pytest
from structlog.testing import capture_logs

from actors.admin.settings import REFUSED
from actors.naming import route_table
from actors.naming.kv_server import KvConfig
from actors.naming.namesrv import Namesrv
from actors.naming.route_table import RouteTable
from actors.network.messages import PeerClosed, Request
from protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRouteData
from protocol.bodies_tables import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import VERSION_5, RequestCode, ResponseCode
from protocol.fastjson import loads
from protocol.frame import RemotingCommand, decode_frame
from protocol.headers.namesrv import RegisterBrokerHeader
from storage.tables.kv_config import format_kv, parse_kv
from tests.support.golden import frames
from tests.support.name_servers import KV_PATH, TOPIC, name_server, registration, route
from tests.support.peers import RecordingPeer, ask, request, tell
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem

ACTING = b',"enableActingMaster":false'


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registered_topic_is_found(compressed: bool) -> None:
    with name_server() as system:
        answer = ask(system, "namesrv", registration(TOPIC, compressed=compressed))
        assert (answer.code, answer.fields, answer.body) == (0, {}, None)
        found = TopicRouteData.decode(route(system, "TopicTest").body)
        assert found.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
        assert found.queue_datas[0].write_queue_nums == 4


def test_a_one_way_registration_counts_and_is_not_answered() -> None:
    with name_server() as system:
        peer = RecordingPeer()
        tell(system, "namesrv", registration(TOPIC, oneway=True), peer)
        assert peer.received == []
        assert route(system, "TopicTest").code == 0


def test_a_missing_route_is_answered_with_the_text_of_4_9_7() -> None:
    with name_server() as system:
        answer = route(system, "nope")
        assert (answer.code, answer.fields) == (ResponseCode.TOPIC_NOT_EXIST, None)
        assert answer.remark == (
            "No topic route info in name server for the topic: nope\n"
            "See http://rocketmq.apache.org/docs/faq/ for further details."
        )


def test_the_json_form_of_a_route_depends_on_the_client() -> None:
    with name_server() as system:
        ask(system, "namesrv", registration(TOPIC))
        assert b'{"0":"10.0.0.1:10911"}' in (route(system, "TopicTest", version=401).body or b"")
        assert b"{0:" in (route(system, "TopicTest", version=317).body or b"")
        standard = route(system, "TopicTest", version=317, acceptStandardJsonOnly="true").body
        assert b'{"0":' in (standard or b"")


def test_only_5_x_clients_are_told_whether_slaves_act_as_masters() -> None:
    with name_server() as system:
        ask(system, "namesrv", registration(TOPIC))
        new, old = (
            bytes(route(system, "TopicTest", version=each).body or b"") for each in (412, 411)
        )
        assert ACTING in new
        assert new.replace(ACTING, b"") == old
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        new, old = (
            bytes(ask(system, "namesrv", RemotingCommand(code, {}, version=each)).body or b"")
            for each in (412, 411)
        )
        assert ACTING in new
        assert new.replace(ACTING, b"") == old


def test_a_registration_with_a_wrong_checksum_is_refused() -> None:
    with name_server() as system:
        answer = ask(system, "namesrv", registration(TOPIC, crc=12345))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
        assert ask(system, "namesrv", registration(TOPIC, crc=0)).code == 0


def test_an_invalid_registration_is_answered_and_changes_nothing() -> None:
    with name_server() as system:
        header = RegisterBrokerHeader("b", "h:1", "c", "h:2", 0, compressed=True).encode()
        command = request(RequestCode.REGISTER_BROKER, header, b"not zlib")
        assert ask(system, "namesrv", command).code == ResponseCode.SYSTEM_ERROR
        assert ask(system, "namesrv", registration(TOPIC)).code == 0


def test_a_silent_broker_is_removed_after_two_minutes() -> None:
    with name_server() as system:
        ask(system, "namesrv", registration(TOPIC))
        system.advance(120_000)
        assert route(system, "TopicTest").code == 0
        system.advance(10_001)
        assert route(system, "TopicTest").code == ResponseCode.TOPIC_NOT_EXIST


def version_query() -> RemotingCommand:
    identity = {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "C1",
        "brokerId": "0",
    }
    return request(RequestCode.QUERY_DATA_VERSION, identity, DataVersion(1000, 1).encode())


def test_a_data_version_query_keeps_a_broker_alive() -> None:
    with name_server() as system:
        command = version_query()
        answer = ask(system, "namesrv", command)
        assert (answer.fields, answer.body) == ({"changed": "true"}, None)
        ask(system, "namesrv", registration(TOPIC, TopicConfig("broker-a")))
        for _ in range(3):
            system.advance(60_000)
            answer = ask(system, "namesrv", command)
            assert answer.fields == {"changed": "false"}
            assert answer.body == b'{"counter":1,"timestamp":1000}'
        assert route(system, "TopicTest").code == 0


def test_a_displaced_broker_is_to_register_again_once_its_rival_is_gone() -> None:
    with name_server() as system:
        command = version_query()
        rival, both = RecordingPeer(), (TOPIC, TopicConfig("broker-a"))
        ask(system, "namesrv", registration(*both))
        ask(system, "namesrv", registration(*both, address="10.0.0.2:10911"), rival)
        assert ask(system, "namesrv", command).fields == {"changed": "false"}
        system.address("namesrv").tell(PeerClosed(rival))
        answer = ask(system, "namesrv", command)
        assert answer.fields == {"changed": "true"}, "it has no route"
        assert answer.body is None, "no topics either: a large broker would send only changes"


def test_a_broker_is_removed_at_once_with_its_connection() -> None:
    with name_server() as system:
        peer = RecordingPeer()
        ask(system, "namesrv", registration(TOPIC), peer)
        system.address("namesrv").tell(PeerClosed(peer))
        system.drain()
        assert route(system, "TopicTest").code == ResponseCode.TOPIC_NOT_EXIST


def test_two_brokers_of_one_name_and_id_are_named_in_the_log() -> None:
    with name_server() as system, capture_logs() as logs:
        one, other = RecordingPeer(), RecordingPeer()
        ask(system, "namesrv", registration(TOPIC), one)
        ask(system, "namesrv", registration(TOPIC), one)
        assert not [entry for entry in logs if entry["log_level"] == "warning"]
        ask(system, "namesrv", registration(TOPIC, address="10.0.0.2:10911"), other)
        (warned,) = [entry for entry in logs if entry["log_level"] == "warning"]
        assert warned["addresses"] == ["10.0.0.1:10911", "10.0.0.2:10911"]
        assert (warned["broker"], warned["id"]) == ("broker-a", 0)
        found = TopicRouteData.decode(route(system, "TopicTest").body)
        assert found.broker_datas[0].broker_addrs == {0: "10.0.0.2:10911"}, "as in 4.9.7"


def test_a_broker_with_a_new_address_is_not_its_own_rival() -> None:
    with name_server() as system, capture_logs() as logs:
        before = RecordingPeer()
        ask(system, "namesrv", registration(TOPIC), before)
        system.address("namesrv").tell(PeerClosed(before))
        system.drain()
        logs.clear()
        ask(system, "namesrv", registration(TOPIC, address="10.0.0.2:10911"))
        assert not [entry for entry in logs if entry["log_level"] == "warning"]


def test_ordered_topics_are_sent_to_brokers_and_optionally_to_clients() -> None:
    with name_server(order_message_enable=True) as system:
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicTest", "value": "broker-a:4"}
        assert ask(system, "namesrv", request(RequestCode.PUT_KV_CONFIG, fields)).code == 0
        answer = ask(system, "namesrv", registration(TOPIC))
        assert answer.body == b'{"table":{"TopicTest":"broker-a:4"}}'
        found = TopicRouteData.decode(route(system, "TopicTest").body)
        assert found.order_topic_conf == "broker-a:4"
        ask(system, "namesrv", request(RequestCode.DELETE_KV_CONFIG, fields))
        assert ask(system, "namesrv", registration(TOPIC)).body == b'{"table":{}}'


def test_settings_for_clients_survive_a_restart() -> None:
    fields = {"namespace": "N", "key": "k", "value": "v"}
    with name_server() as system:
        disk = system.disk
        miss = ask(system, "namesrv", request(RequestCode.GET_KV_CONFIG, fields))
        assert (miss.code, miss.fields) == (ResponseCode.QUERY_NOT_FOUND, {})
        assert miss.remark == "No config item, Namespace: N Key: k"
        miss = ask(system, "namesrv", request(RequestCode.GET_KVLIST_BY_NAMESPACE, fields))
        assert (miss.code, miss.fields) == (ResponseCode.QUERY_NOT_FOUND, None)
        ask(system, "namesrv", request(RequestCode.PUT_KV_CONFIG, fields))
    with name_server(disk) as system:
        found = ask(system, "namesrv", request(RequestCode.GET_KV_CONFIG, fields))
        assert found.fields == {"value": "v"}
        found = ask(system, "namesrv", request(RequestCode.GET_KVLIST_BY_NAMESPACE, fields))
        assert found.body == b'{"table":{"k":"v"}}'


def test_a_setting_that_cannot_be_saved_is_answered_with_an_error() -> None:
    fields = {"namespace": "N", "key": "k", "value": "v"}
    disk = FakeDisk()
    with name_server(disk) as system:
        disk.fail_next("pwrite", OSError(ENOSPC, "No space left on device"))
        answer = ask(system, "namesrv", request(RequestCode.PUT_KV_CONFIG, fields))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the disk is full" in (answer.remark or "")


@pytest.mark.parametrize("taken", ["$ref", "@type"])
def test_a_key_with_characters_special_to_the_file_is_refused(taken: str) -> None:
    disk = FakeDisk()
    with name_server(disk) as system:
        for namespace, key in (("N", taken), (taken, "k")):
            fields = {"namespace": namespace, "key": key, "value": "$"}
            answer = ask(system, "namesrv", request(RequestCode.PUT_KV_CONFIG, fields))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert f"no entry can be called {taken}" in (answer.remark or "")


def test_a_topic_number_out_of_javas_range_refuses_the_registration() -> None:
    with name_server() as system:
        for compressed in (False, True):
            bad = registration(TOPIC, TopicConfig("Bad", 1 << 31, 4), compressed=compressed)
            answer = ask(system, "namesrv", bad)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "readQueueNums" in (answer.remark or "")
            assert route(system, TOPIC.topic_name).code == ResponseCode.TOPIC_NOT_EXIST
        assert ask(system, "namesrv", registration(TopicConfig("Odd", -4, -1))).code == 0


def test_the_file_of_the_settings_is_that_of_4_9_7() -> None:
    kv = KvConfig(parse_kv('{"configTable":{"N":{"k":"v"}}}'))
    kv.put("M", "a", "1")
    assert loads(format_kv(kv.copy())) == {"configTable": {"N": {"k": "v"}, "M": {"a": "1"}}}


def test_a_name_server_starts_with_a_damaged_file_and_keeps_it_aside() -> None:
    disk = FakeDisk()
    disk.make_dirs("/data")
    disk.open(KV_PATH, create=True).pwrite(b'{"configTable":{"N"', 0)
    with name_server(disk) as system:
        system.drain()
        assert disk.read_bytes(KV_PATH) == b'{"configTable":{}}'
        assert disk.read_bytes(f"{KV_PATH}.broken") == b'{"configTable":{"N"'


# --- the original's own frames


def _pairs() -> Iterator[tuple[RemotingCommand, RemotingCommand, str]]:
    """Whole (request, response) pairs between a peer and the original's name server."""
    waiting: dict[tuple[str, int, int], tuple[RemotingCommand, str]] = {}
    for name in ("java-4.9.7", "java-5.3.3", "go-v2", "negative", "acl", "binary-header"):
        for frame in frames(name):
            if frame["to"] != "namesrv" or frame.get("truncated"):
                continue
            command = decode_frame(frame["frame"][4:])
            key = (name, frame["conn"], frame["opaque"])
            if frame["direction"] == "response" and key in waiting:
                asked, code_name = waiting.pop(key)
                yield asked, command, code_name
            elif frame["direction"] == "request":
                waiting[key] = (command, frame["code_name"])


def _shape(body: bytes | memoryview | None) -> object:
    """The keys of a JSON body; of a properties text nothing."""
    if not body or bytes(body[:1]) not in (b"{", b"["):
        return None
    value = loads(body)
    return sorted(map(str, value)) if isinstance(value, dict) else type(value)


SETTINGS = {RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.GET_NAMESRV_CONFIG}
NEWER_WORDS = {"Can not update config path": REFUSED}
"""Texts of 4.9.8 that differ from 4.9.7."""


def test_the_originals_requests_get_the_originals_answers() -> None:
    """Each pair on its own: the state that the answer shows is brought about first."""
    compared = set()
    for asked, answered, name in _pairs():
        with name_server() as system:
            _bring_about(system, asked, answered)
            answer = ask(system, "settings" if asked.code in SETTINGS else "namesrv", asked)
            context = (name, asked.fields)
            assert answer.code == answered.code, context
            if asked.code != RequestCode.UPDATE_NAMESRV_CONFIG or answered.remark:
                wanted = NEWER_WORDS.get(answered.remark or "", answered.remark)
                assert answer.remark == wanted, context
            assert (answer.fields or {}).keys() == (answered.fields or {}).keys(), context
            assert (answer.fields is None) == (answered.fields is None), context
            if asked.code != RequestCode.REGISTER_BROKER:
                assert _shape(answer.body) == _shape(answered.body), context
            compared.add(asked.code)
    assert len(compared) >= 20, compared


def _bring_about(
    system: SimulatedSystem, asked: RemotingCommand, answered: RemotingCommand
) -> None:
    fields = asked.fields or {}
    if asked.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and answered.code == 0:
        ask(system, "namesrv", registration(TopicConfig(fields["topic"])))
    elif asked.code == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS:
        ask(system, "namesrv", registration(TOPIC))
    elif asked.code == RequestCode.QUERY_DATA_VERSION and answered.body is not None:
        _register_version(system, fields, DataVersion.decode(answered.body))
    elif asked.code in (RequestCode.GET_KV_CONFIG, RequestCode.GET_KVLIST_BY_NAMESPACE):
        if answered.code == 0:
            entry = {"namespace": fields["namespace"], "key": fields.get("key", "k"), "value": "v"}
            ask(system, "namesrv", request(RequestCode.PUT_KV_CONFIG, entry))
    elif asked.code == RequestCode.REGISTER_BROKER and (answered.fields or {}).get("masterAddr"):
        header = RegisterBrokerHeader.decode(fields)
        header.broker_id, header.body_crc, header.compressed = 0, 0, False
        header.broker_address = "10.0.0.1:10911"
        body = RegisterBrokerBody().encode()
        ask(system, "namesrv", request(RequestCode.REGISTER_BROKER, header.encode(), body))


def _register_version(
    system: SimulatedSystem, fields: dict[str, str], version: DataVersion
) -> None:
    header = RegisterBrokerHeader(
        fields["brokerName"], fields["brokerAddr"], fields["clusterName"], "h:1", 0
    )
    body = RegisterBrokerBody(TopicConfigTable({}, version)).encode()
    ask(system, "namesrv", request(RequestCode.REGISTER_BROKER, header.encode(), body))


def test_routes_and_clusters_equal_the_originals_byte_for_byte() -> None:
    """From what its answer says, the state is made again that it was given in."""
    codes = (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO)
    compared: Counter[int] = Counter()
    for asked, answered, name in _pairs():
        if asked.code not in codes or answered.code != 0:
            continue
        with name_server() as system:
            if asked.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                found = TopicRouteData.decode(answered.body)
                brokers, queues = found.broker_datas, found.queue_datas
            else:
                table = ClusterInfo.decode(answered.body).broker_addr_table
                brokers, queues = list(table.values()), []
            _register_all(system, (asked.fields or {}).get("topic", "T"), brokers, queues)
            answer = ask(system, "namesrv", asked)
            told = bytes(answer.body or b"")
            if asked.version >= VERSION_5:  # 4.9.7 leaves it out
                told = told.replace(ACTING, b"")
            assert told == answered.body, (name, asked.fields)
            compared[asked.code] += 1
    assert min(compared[code] for code in codes) >= 2, compared


def _register_all(
    system: SimulatedSystem, topic: str, brokers: list[BrokerData], queues: list[QueueData]
) -> None:
    own = {each.broker_name: each for each in queues}
    for broker in brokers:
        configs = {}
        data = own.get(broker.broker_name)
        if data is not None:
            numbers = (data.read_queue_nums, data.write_queue_nums, data.perm)
            config = TopicConfig(topic, *numbers, topic_sys_flag=data.topic_sys_flag)
            configs[topic] = config
        body = RegisterBrokerBody(TopicConfigTable(configs, DataVersion(1, 1))).encode()
        for broker_id, address in broker.broker_addrs.items():
            name, cluster = broker.broker_name, broker.cluster
            header = RegisterBrokerHeader(name, address, cluster, "h:1", broker_id)
            ask(system, "namesrv", request(RequestCode.REGISTER_BROKER, header.encode(), body))


def test_a_topic_without_a_name_is_ignored() -> None:
    with name_server() as system:
        assert ask(system, "namesrv", registration(replace(TOPIC, topic_name=""))).code == 0
        answer = ask(system, "namesrv", request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        assert loads(bytes(answer.body or b"")) == {"topicList": []}


def test_the_encoded_data_version_is_short() -> None:
    with name_server() as system:
        fields = {"brokerName": "b", "brokerAddr": "a:1", "clusterName": "c", "brokerId": "0"}
        body = b'{"counter":1%s}' % (b" " * (4 << 10))
        answer = ask(system, "namesrv", request(RequestCode.QUERY_DATA_VERSION, fields, body))
        assert (answer.code, answer.remark) == (1, "the body is not a data version")


LISTS = (
    (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None),
    (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C1"}),
    (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "none"}),
    (RequestCode.GET_UNIT_TOPIC_LIST, None),
    (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, None),
    (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, None),
)


def test_topics_of_a_large_table_are_chosen_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them held all other requests up for 0.2 s."""
    with name_server() as system:
        topics = [replace(TOPIC, topic_name=f"T{flag}", topic_sys_flag=flag) for flag in range(4)]
        ask(system, "namesrv", registration(*topics))
        here = [ask(system, "namesrv", request(*each)).body for each in LISTS]
        writer = system.address("long_answers")
        assert writer.handled == 0
        monkeypatch.setattr("actors.naming.namesrv.CHOSEN_HERE_MAX", 3, raising=False)
        assert [ask(system, "namesrv", request(*each)).body for each in LISTS] == here
        assert writer.handled == len(LISTS)
    assert here[2] == b'{"topicList":[]}' and b'"T1","T3"' in (here[3] or b"")


def test_lists_of_topics_at_many_brokers_or_with_long_names_are_chosen_on_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """40,000 topics at 95 brokers took 150 ms, 50,000 names of 512 characters 2 s."""
    system_list = request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    with name_server() as system:
        topics = [replace(TOPIC, topic_name=f"T{number}") for number in range(3)]
        writer, routes = system.address("long_answers"), RouteTable()
        for number in (1, 2):
            for each in topics:
                header = RegisterBrokerHeader(f"b{number}", f"h:{number}", "C1", "h:1", 0)
                table = TopicConfigTable({each.topic_name: each}, DataVersion(1, number))
                routes.register(header, table, None, 1, 0)
        (namesrv,) = [each for each in system.live if isinstance(each, Namesrv)]
        namesrv._routes = routes
        here = [ask(system, "namesrv", request(*each)).body for each in LISTS]
        names = ask(system, "namesrv", system_list).body
        assert writer.handled == 0 and (routes.queues_count, routes.topic_chars) == (6, 6)
        for limit, lists in (("CHOSEN_HERE_MAX", 0), ("LISTED_CHARS_HERE_MAX", 1)):
            with monkeypatch.context() as patch:
                patch.setattr(f"actors.naming.namesrv.{limit}", 5, raising=False)
                before = writer.handled
                assert [ask(system, "namesrv", request(*each)).body for each in LISTS] == here
                assert ask(system, "namesrv", system_list).body == names
                assert writer.handled - before == len(LISTS) + lists
        for each in topics:
            routes.delete_topic(each.topic_name)
        assert (routes.queues_count, routes.topic_chars) == (0, 0)


@pytest.mark.parametrize("version", [0, 407, 456])
@pytest.mark.parametrize("limit", ["ROUTE_BROKERS_HERE_MAX", "ROUTE_CHARS_HERE_MAX"])
def test_long_routes_are_encoded_on_a_thread(
    monkeypatch: pytest.MonkeyPatch, limit: str, version: int
) -> None:
    """A topic at 10,000 brokers took 0.2 s, with long names 1.3 s."""
    with name_server(order_message_enable=True) as system:
        ask(system, "namesrv", registration(TOPIC))
        (namesrv,) = [each for each in system.live if isinstance(each, Namesrv)]
        namesrv.kv.put("ORDER_TOPIC_CONFIG", "TopicTest", "broker-a:4")
        here = route(system, "TopicTest", version).body
        writer = system.address("long_answers")
        assert writer.handled == 0 and here
        monkeypatch.setattr(f"actors.naming.namesrv.{limit}", 0, raising=False)
        assert route(system, "TopicTest", version).body == here
        assert writer.handled == 1


def test_routes_of_a_round_share_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,200 requests of 200 connections for a topic at 90 brokers blocked it for 5.8 s."""
    monkeypatch.setattr("actors.naming.namesrv.ROUTE_BROKERS_OF_ROUND", 5)
    with name_server() as system:
        for number in (1, 2):
            ask(system, "namesrv", registration(TOPIC, name=f"b{number}", address=f"{number}:1"))
        writer, answers = system.address("long_answers"), []
        for round_count in (1, 1, 1, 2):
            monkeypatch.setattr(system.loop, "round_count", round_count)
            answers.append((route(system, "TopicTest", 0).body, writer.handled))
        ask(system, "namesrv", registration(replace(TOPIC, topic_name="Short"), name="b3"))
        monkeypatch.setattr("actors.naming.namesrv.ROUTE_BROKERS_OF_ROUND", 1)
        monkeypatch.setattr("actors.naming.namesrv.ROUTE_BROKERS_HERE_MAX", 1)
        monkeypatch.setattr(system.loop, "round_count", 3)
        assert route(system, "TopicTest", 0).body and route(system, "Short", 0).body
        assert writer.handled == 2, "a long route takes nothing of the share"
    assert [handled for _, handled in answers] == [0, 0, 1, 1]
    assert len({body for body, _ in answers}) == 1


def test_brokers_of_a_closed_connection_leave_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.naming.route_table.SWEPT_AT_ONCE", 2, raising=False)
    with name_server() as system:
        topics = [replace(TOPIC, topic_name=f"T{number}") for number in range(9)]
        peer = RecordingPeer()
        ask(system, "namesrv", registration(*topics), peer)
        (namesrv,) = [each for each in system.live if isinstance(each, Namesrv)]
        system.address("namesrv").tell(PeerClosed(peer))
        system.drain()
        assert namesrv._routes.topics() == [] and not namesrv._routes.is_sweeping
        listed = ask(system, "namesrv", request(*LISTS[0])).body
        assert listed == b'{"topicList":[]}'


def test_many_brokers_are_listed_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand of them took 0.1 s."""
    with name_server() as system:
        ask(system, "namesrv", registration(TOPIC))
        writer, code = system.address("long_answers"), RequestCode.GET_BROKER_CLUSTER_INFO
        asked = [RemotingCommand(code, {}, version=each) for each in (412, 411)]
        here = [ask(system, "namesrv", each).body for each in asked]
        monkeypatch.setattr("actors.naming.namesrv.ENCODED_HERE_MAX", 0, raising=False)
        asked = [RemotingCommand(code, {}, version=each) for each in (412, 411)]
        assert [ask(system, "namesrv", each).body for each in asked] == here
        assert writer.handled == 2 and here[0] != here[1]


def test_permissions_of_many_topics_change_while_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route_table, "CHANGED_AT_ONCE", 1)
    peer, topics = RecordingPeer(), [TopicConfig(f"t{number}") for number in range(9)]
    wipe, add = RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER
    with name_server() as system:
        ask(system, "namesrv", registration(*topics))
        namesrv = system.address("namesrv")
        commands = [request(code, {"brokerName": "broker-a"}) for code in (wipe, add, wipe)]
        handled = namesrv.handled
        for command in commands:
            namesrv.tell(Request(command, peer))
        system.drain()
        assert namesrv.handled - handled == 3 + 3 * 10, "a step of one of them in a round"
        assert [answer.opaque for answer in peer.received] == [each.opaque for each in commands]
        assert [answer.fields for answer in peer.received] == [
            {"wipeTopicCount": "9"},
            {"addTopicCount": "9"},
            {"wipeTopicCount": "9"},
        ]
        namesrv.tell(Request(request(add, {"brokerName": "broker-a"}), peer))
        with capture_logs():
            namesrv.tell(object())  # fails
            system.drain()
        assert len(peer.received) == 4, "answered or refused"
