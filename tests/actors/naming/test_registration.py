"""Tests of actors/naming/registration.py and namesrv_link.py: a broker and its name servers."""

import pytest
from structlog.testing import capture_logs

from actors.naming import namesrv_link
from actors.naming.messages import AskForRoute, MasterClientAddress, MasterHaAddress, RouteAnswered
from actors.tables.messages import RegisterAll, RegisterTopic, SetOrderTopics
from protocol.bodies import QueueData, TopicRouteData
from protocol.bodies_tables import DataVersion, KVTable, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import RegisterBrokerHeader
from tests.support.peers import Told
from tests.support.registering import QUERY, REGISTER, UNREGISTER, registered, registration
from tests.support.told import times


def test_a_broker_registers_at_once_after_ten_seconds_and_then_periodically() -> None:
    with registration() as bench:
        bench.system.advance(5000)
        assert bench.namesrvs[0].take() == [], "no port is open yet"
        bench.listen()
        for namesrv in bench.namesrvs:
            assert namesrv.take() == [REGISTER]
        bench.system.advance(9_999)
        assert bench.namesrvs[0].take() == []
        bench.system.advance(1)
        assert bench.namesrvs[0].take() == [REGISTER]
        bench.system.advance(29_999)
        assert bench.namesrvs[0].take() == []
        bench.system.advance(1)
        bench.system.advance(60_000)
        assert bench.namesrvs[1].take() == [REGISTER] * 4


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_has_identity_address_and_topics(compressed: bool) -> None:
    with registration(compressed_register=compressed) as bench:
        bench.listen(30_001)
        (request,) = bench.namesrvs[0].asked
        header = RegisterBrokerHeader.decode(request.fields)
        assert (header.broker_name, header.cluster_name) == ("broker-a", "DefaultCluster")
        assert header.broker_address == "10.0.0.1:30001"
        assert header.ha_server_address == "10.9.0.1:30002"
        assert (header.broker_id, header.compressed) == (0, compressed)
        assert registered(request).topic_config_table == bench.table.value


def test_a_stop_unregisters_at_name_servers_that_have_the_broker() -> None:
    with registration() as bench:
        bench.namesrvs[1].down = True
        bench.listen()
        namesrvs = bench.namesrvs
    assert namesrvs[0].take() == [REGISTER, UNREGISTER]
    assert namesrvs[1].take() == []


def test_a_name_server_that_is_down_is_tried_again_soon() -> None:
    with registration() as bench:
        bench.namesrvs[0].down = True
        bench.listen()
        assert bench.namesrvs[1].take() == [REGISTER]
        bench.namesrvs[0].down = False
        bench.system.advance(5_000)
        assert bench.namesrvs[0].take() == [REGISTER]
        assert bench.namesrvs[1].take() == []


def test_a_broker_registers_again_soon_after_a_closed_connection() -> None:
    with registration(1) as bench:
        bench.listen()
        bench.system.advance(20_000)
        bench.namesrvs[0].take()
        bench.namesrvs[0].connected = False
        bench.system.advance(5_000)
        assert bench.namesrvs[0].take() == [REGISTER]
        bench.system.advance(5_000)
        assert bench.namesrvs[0].take() == []


def test_a_name_server_that_sends_no_frames_is_logged_once_a_minute() -> None:
    with registration(1) as bench, capture_logs() as logs:
        bench.listen()
        bench.system.advance(20_000)
        bench.namesrvs[0].take()
        bench.namesrvs[0].babbles = True
        for _ in range(11):
            bench.system.advance(5_000)
            assert REGISTER in bench.namesrvs[0].take()
    said = [each for each in logs if each["log_level"] in ("warning", "error")]
    assert [(each["event"], each["namesrv"], each["reason"]) for each in said] == [
        ("name server connection closed", "n0:9876", "no frame")
    ]


def test_one_changed_topic_is_registered_alone() -> None:
    with registration() as bench:
        bench.listen()
        bench.namesrvs[0].take()
        bench.tell(RegisterTopic(TopicConfig("New", 1, 1), DataVersion(2000, 4)))
        (request,) = bench.namesrvs[0].asked
        table = registered(request).topic_config_table
        assert set(table.topic_configs) == {"New"}
        assert table.data_version == DataVersion(2000, 4)


def test_new_topics_of_a_batch_are_one_registration_without_order() -> None:
    with registration(1) as bench:
        bench.namesrvs[0].answer = lambda request: request.answer(
            body=KVTable({"T": "broker-a:4"}).encode()
        )
        bench.listen()
        assert bench.topics.take() == [SetOrderTopics(frozenset(("T",)))]
        bench.namesrvs[0].take()
        for _ in range(3):
            bench.system.address("registration").tell(RegisterAll())
        bench.system.drain()
        assert 1 <= len(bench.namesrvs[0].take()) <= 3
        assert bench.topics.take() == [], "one-way: there is no answer"


def test_topics_created_before_the_ports_open_are_registered_then() -> None:
    with registration() as bench:
        bench.tell(RegisterAll())
        bench.tell(RegisterTopic(TopicConfig("New"), DataVersion(1, 1)))
        assert bench.namesrvs[0].take() == []
        bench.listen()
        assert bench.namesrvs[0].take() == [REGISTER]


def test_without_force_a_broker_registers_only_with_outdated_name_servers() -> None:
    known = {"version": DataVersion(1000, 3)}

    def answer(request: RemotingCommand) -> RemotingCommand:
        if request.code != QUERY:
            return request.answer(fields={})
        changed = "false" if known["version"] == DataVersion(1000, 3) else "true"
        return request.answer(fields={"changed": changed}, body=known["version"].encode())

    with registration(1, force_register=False) as bench:
        bench.namesrvs[0].answer = answer
        bench.listen()
        assert bench.namesrvs[0].take() == [REGISTER], "at the start in any case"
        bench.system.advance(10_000)
        assert bench.namesrvs[0].take() == [QUERY]
        known["version"] = DataVersion(900, 2)
        bench.system.advance(30_000)
        assert bench.namesrvs[0].take() == [QUERY, REGISTER]


def test_without_force_a_slave_finds_a_master_that_registers_later() -> None:
    with registration(1, force_register=False, broker_role="SLAVE", broker_id=1) as bench:
        bench.namesrvs[0].answer = lambda request: request.answer(fields={"changed": "false"})
        bench.listen()
        bench.master.take()
        master = {"haServerAddr": "10.9.0.2:10912", "masterAddr": "10.0.0.2:10911"}
        bench.namesrvs[0].answer = lambda request: request.answer(
            fields=master if request.code == REGISTER else {"changed": "false"}
        )
        bench.system.advance(10_000)
        assert MasterHaAddress("10.9.0.2:10912") in bench.master.take()


def test_a_read_only_broker_registers_each_topic_as_read_only() -> None:
    with registration(1, broker_permission=4) as bench:
        bench.listen()
        (request,) = bench.namesrvs[0].asked
        table = registered(request).topic_config_table
        assert {config.perm for config in table.topic_configs.values()} == {4}
        assert bench.table.value.topic_configs["T"].perm == 6


def test_an_invalid_answer_does_no_harm() -> None:
    with registration(1) as bench:
        bench.namesrvs[0].answer = lambda request: request.answer(body=b"{")
        bench.listen()
        bench.namesrvs[0].answer = lambda request: request.answer(1, remark="crc32 not match")
        bench.system.advance(10_000)
        assert bench.topics.take() == []
        assert bench.namesrvs[0].take() == [REGISTER, REGISTER]


def test_a_slave_learns_its_masters_address_and_disappearance() -> None:
    with registration(broker_role="SLAVE", broker_id=1) as bench:
        fields = {"haServerAddr": "10.9.0.2:10912", "masterAddr": "10.0.0.2:10911"}
        for namesrv in bench.namesrvs:
            namesrv.answer = lambda request: request.answer(fields=fields)
        bench.listen()
        at, master = MasterHaAddress("10.9.0.2:10912"), MasterClientAddress("10.0.0.2:10911")
        assert bench.master.take()[-2:] == [at, master]
        fields.clear()
        bench.system.advance(10_000)
        assert bench.master.take()[-1] == MasterClientAddress(None)


@pytest.mark.parametrize("first", [{}, {"masterAddr": "nonsense"}])
def test_a_slave_follows_a_master_that_only_another_name_server_knows(
    first: dict[str, str],
) -> None:
    """While the first one knew no master, it never followed, or its tables stayed as they were."""
    fields = {"haServerAddr": "10.9.0.2:10912", "masterAddr": "10.0.0.2:10911"}
    followed = [MasterHaAddress("10.9.0.2:10912"), MasterClientAddress("10.0.0.2:10911")]
    with registration(broker_role="SLAVE", broker_id=1) as bench:
        bench.namesrvs[0].answer = lambda request: request.answer(fields=first)
        bench.namesrvs[1].answer = lambda request: request.answer(fields=fields)
        bench.listen()
        assert bench.master.take()[-2:] == followed
        bench.system.advance(10_000)
        assert bench.master.take() == followed * 2


def test_a_master_does_not_ask_for_a_master() -> None:
    with registration() as bench:
        fields = {"haServerAddr": "10.9.0.2:10912", "masterAddr": "10.0.0.2:10911"}
        for namesrv in bench.namesrvs:
            namesrv.answer = lambda request: request.answer(fields=fields)
        bench.listen()
        assert bench.master.take() == []


def test_ordered_topics_come_from_the_first_reachable_name_server() -> None:
    with registration() as bench:
        for namesrv, topic in zip(bench.namesrvs, ("T", "U"), strict=True):
            body = KVTable({topic: "broker-a:4"}).encode()
            namesrv.answer = lambda request, body=body: request.answer(body=body)  # type: ignore[misc]
        bench.namesrvs[0].down = True
        bench.listen()
        assert bench.topics.take() == [SetOrderTopics(frozenset(("U",)))]
        bench.namesrvs[0].down = False
        bench.system.advance(10_000)
        assert bench.topics.take()[-1] == SetOrderTopics(frozenset(("T",)))
        bench.system.advance(30_000)
        assert bench.topics.take() == [SetOrderTopics(frozenset(("T",)))]


def test_only_own_topics_are_taken_from_a_million_ordered_topics() -> None:
    """To read them blocked the loop for 0.7 s, and one line of 9.8 MB listed them."""
    table = {f"T{number}": "b:4" for number in range(1000)} | {"New": "b:4", "U": "b:4"}
    with registration(1) as bench:
        body = KVTable(table).encode()
        bench.namesrvs[0].answer = lambda request: request.answer(body=body)
        bench.listen()
        assert bench.topics.take() == [SetOrderTopics(frozenset("U"))]
        bench.tell(RegisterTopic(TopicConfig("New", 1, 1), DataVersion(2000, 4)))
        assert bench.topics.take() == [SetOrderTopics(frozenset(("U", "New")))]


def test_an_oversized_ordered_topics_list_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namesrv_link, "ORDERED_BYTES_MAX", 1000)
    with registration(1) as bench, capture_logs() as logs:
        bodies = [KVTable({"T": "b" * 1000}).encode(), KVTable({"T": "b" * 900}).encode()]
        bench.namesrvs[0].answer = lambda request: request.answer(body=bodies[0])
        bench.listen()
        for _ in range(4):
            bench.tell(RegisterTopic(TopicConfig("T", 1, 1), DataVersion(2000, 4)))
        assert bench.topics.take() == []
        assert times(logs, "ordered topics rejected") == [1]
        del bodies[0]
        bench.system.advance(10_000)
        assert bench.topics.take() == [SetOrderTopics(frozenset("T"))]


@pytest.mark.parametrize("where", ["haServerAddr", "masterAddr"])
@pytest.mark.parametrize(
    "address", ["nonsense", ":1", "h:", "h:0", "h:65536", "h:-1", "h:1\n", "a b:1", "h:١"]
)
def test_a_slave_ignores_an_invalid_master_address(where: str, address: str) -> None:
    """An invalid address must not make its actor fail."""
    fields = {"haServerAddr": "10.9.0.2:10912", "masterAddr": "10.0.0.2:10911", where: address}
    with registration(1, broker_role="SLAVE", broker_id=1) as bench, capture_logs() as logs:
        bench.namesrvs[0].answer = lambda request: request.answer(fields=fields)
        bench.listen()
        bench.system.advance(30_000)
        assert bench.master.take() == []
        assert times(logs, "master address rejected") == [1]
        fields[where] = "[fd00::7]:65535"
        bench.system.advance(30_000)
        assert len(bench.master.take()) == 2


def test_a_restarted_name_server_gets_the_whole_table_first() -> None:
    """The one topic went first, with the version of the table: 4.9.7 then ignored the table."""
    with registration(1) as bench:
        bench.listen()
        (namesrv,) = bench.namesrvs
        namesrv.take()
        topic = RegisterTopic(TopicConfig("New", 1, 1), DataVersion(2000, 4))
        namesrv.connection_count += 1
        bench.tell(topic)
        (request,) = namesrv.asked
        assert registered(request).topic_config_table == bench.table.value
        namesrv.take()
        namesrv.down = True
        bench.system.advance(10_000)
        namesrv.down = False
        bench.tell(topic)
        (request,) = namesrv.asked
        assert registered(request).topic_config_table == bench.table.value


def test_after_a_closed_connection_a_topic_is_not_registered_alone() -> None:
    with registration(1) as bench:
        bench.listen()
        (namesrv,) = bench.namesrvs
        namesrv.take()
        namesrv.connected = False
        bench.tell(RegisterTopic(TopicConfig("New", 1, 1), DataVersion(2000, 4)))
        (request,) = namesrv.asked
        assert registered(request).topic_config_table == bench.table.value


@pytest.mark.parametrize("lost", ["its answer is an error", "nothing answers to all topics"])
def test_after_a_possibly_lost_registration_the_whole_table_is_sent(lost: str) -> None:
    """The next topic went alone, and a name server that lacked the one before never had it."""
    with registration(1) as bench:
        bench.listen()
        (namesrv,) = bench.namesrvs
        if lost == "its answer is an error":
            namesrv.answer = lambda request: request.answer(2, remark="too busy")
            bench.tell(RegisterTopic(TopicConfig("Lost", 1, 1), DataVersion(2000, 4)))
        else:
            configs = bench.table.value.topic_configs
            bench.table.value = TopicConfigTable(configs, DataVersion(2000, 4))
            bench.tell(RegisterAll())
        namesrv.answer = lambda request: request.answer(fields={})
        namesrv.take()
        bench.tell(RegisterTopic(TopicConfig("New", 1, 1), DataVersion(2000, 5)))
        (request,) = namesrv.asked
        assert registered(request).topic_config_table == bench.table.value


def test_without_force_a_broker_registers_where_topics_are_missing() -> None:
    with registration(1, force_register=False) as bench:
        bench.listen()
        (namesrv,) = bench.namesrvs
        namesrv.take()
        version = bench.table.value.data_version.encode()
        namesrv.answer = lambda request: request.answer(fields={"changed": "true"}, body=version)
        bench.system.advance(10_000)
        assert namesrv.take() == [QUERY, REGISTER]


@pytest.mark.parametrize("waits_for", ["the batch to end", "nothing: that change went unsaid"])
def test_a_topic_is_registered_alone_only_if_it_is_the_only_change(waits_for: str) -> None:
    with registration(1) as bench:
        bench.listen()
        (namesrv,) = bench.namesrvs
        namesrv.take()
        topics = {name: TopicConfig(name, 1, 1) for name in ("Made", "Updated")}
        version = DataVersion(2000, bench.table.value.data_version.counter + 2)
        bench.table.value = TopicConfigTable(topics, version)
        if waits_for == "the batch to end":
            bench.system.address("registration").tell(RegisterAll())
        bench.tell(RegisterTopic(topics["Updated"], version))
        first = registered(namesrv.asked[0]).topic_config_table
        assert first == bench.table.value, "it takes nothing else for this version afterwards"


# --- very many topics


def route_answer(request: RemotingCommand) -> RemotingCommand:
    if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
        return request.answer(fields={})
    if (request.fields or {})["topic"] != "T":
        return request.answer(ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
    queues = [QueueData("b", 3, 1, 6), QueueData("c", 4, 4, 2), QueueData("a", 2, 8, 4)]
    return request.answer(body=TopicRouteData(queues).encode(standard_json=True))


def test_the_first_name_server_that_is_up_tells_the_readable_queues_of_a_topic() -> None:
    with registration() as bench:
        bench.namesrvs[0].down, bench.namesrvs[1].answer = True, route_answer
        requester = Told("requester")
        bench.tell(AskForRoute("T", requester.address))
        assert requester.take() == [RouteAnswered("T", None, is_known=False)], "none is up yet"
        bench.listen()
        for topic in ("T", "U"):
            bench.tell(AskForRoute(topic, requester.address))
        assert requester.take() == [
            RouteAnswered("T", [("a", 2), ("b", 3)]),
            RouteAnswered("U", None),
        ]
        bench.namesrvs[1].down = True
        bench.tell(AskForRoute("T", requester.address))
        assert requester.take() == [RouteAnswered("T", None, is_known=False)]


@pytest.mark.parametrize("body", [b"", b"{", b'{"queueDatas":[{"readQueueNums":70000,"perm":6}]}'])
def test_an_invalid_route_counts_as_no_answer(body: bytes) -> None:
    with registration(1) as bench:
        bench.listen()
        bench.namesrvs[0].answer = lambda request: request.answer(body=body)
        requester = Told("requester")
        bench.tell(AskForRoute("T", requester.address))
        assert requester.take() == [RouteAnswered("T", None, is_known=False)]
