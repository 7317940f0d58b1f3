"""Many members of many groups: notices, comparisons and limits of a round of the loop."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from json import dumps
from typing import Any

import pytest

from actors.consumers import clients as clients_file
from actors.consumers import consumer_groups, group_changes, mismatches
from actors.consumers.consumer_groups import ConsumerGroup
from actors.consumers.heartbeat_rules import GROUPS_MAX, SUBSCRIPTIONS_MAX
from actors.engine.actor_address import ActorAddress
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import Request
from actors.tables.messages import READ_HERE_BYTES_MAX
from protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from protocol.bodies_admin import ConsumerConnection
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.json_body import Value
from tests.actors.consumers.test_clients import Bench, clients
from tests.support.brokers import subscription
from tests.support.peers import RecordingPeer, ask, request


def consumer(group: str, wants: list[SubscriptionData]) -> ConsumerData:
    return ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", wants)


def heartbeat(bench: Bench, peer: RecordingPeer, data: HeartbeatData) -> RemotingCommand:
    return ask(bench.system, "clients", request(RequestCode.HEART_BEAT, body=data.encode()), peer)


def members(bench: Bench, count: int, groups: int, topics: int = 1) -> list[RecordingPeer]:
    """Return `count` clients, each in `groups` groups."""
    peers = []
    for number in range(count):
        peer = RecordingPeer()
        wants = [subscription(f"T{topic}", f"tag{number}") for topic in range(topics)]
        said = [consumer(f"g{each}", wants) for each in range(groups)]
        heartbeat(bench, peer, HeartbeatData(f"c{number}", [], said))
        peers.append(peer)
    return peers


def told_of(peer: RecordingPeer) -> Counter[str]:
    return Counter((each.fields or {})["consumerGroup"] for each in peer.notices())


def test_notices_about_a_client_in_many_groups_take_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """40 clients in 1,000 groups each that went at once held the loop up for 5.5 s."""
    monkeypatch.setattr(group_changes, "NOTICES_PER_ROUND", 10)
    with clients() as bench:
        first, *others = members(bench, 5, 20)
        told_of(first)
        later: list[Any] = []
        loop, address = bench.system.loop, bench.system.address("clients")
        monkeypatch.setattr(loop, "tell_in_next_round", lambda _, each: later.append(each))
        for other in others:
            bench.close(other)
        told = told_of(first)
        assert 0 < sum(told.values()) <= 10
        while later:
            address.tell(later.pop())
            bench.system.drain()
            more = told_of(first)
            assert sum(more.values()) <= 10
            told += more
        assert set(told) == {f"g{number}" for number in range(20)}
        assert sum(told.values()) <= 30, "each group once, when all had gone, but the first"


def test_subscriptions_of_many_groups_are_compared_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_groups, "COMPARED_PER_ROUND", 10)
    compared = []
    compare = ConsumerGroup.compare

    def note(group: ConsumerGroup) -> bool:
        compared.append(group)
        return compare(group)

    monkeypatch.setattr(ConsumerGroup, "compare", note)
    with clients() as bench:
        members(bench, 2, 30)
        assert all(bench.consumers.value[f"g{number}"].mismatches for number in range(30))
        compared.clear()
        later: list[object] = []
        monkeypatch.setattr(
            bench.system.loop, "tell_in_next_round", lambda _, message: later.append(message)
        )
        heartbeat(
            bench,
            RecordingPeer(),
            HeartbeatData("c9", [], [consumer(f"g{each}", []) for each in range(30)]),
        )
        assert 0 < len(compared) <= 10
        assert later


def test_subscriptions_of_one_group_are_compared_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_groups, "COMPARED_MAX", 40)
    monkeypatch.setattr(mismatches, "EXPRESSIONS_MAX", 10)
    with clients() as bench:
        members(bench, 20, 1, topics=10)
        (found, *others) = bench.consumers.value["g0"].mismatches
        assert (found.topic, len(found.wanted)) == ("T0", 5), "the five heard of last"
        assert len(others) == 2, "of all topics the first ones"


def test_members_without_a_heartbeat_leave_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """100 connections in 1,000 groups each that fell silent stopped the loop for a second."""
    monkeypatch.setattr(clients_file, "EXPIRED_PER_ROUND", 10)
    with clients() as bench:
        (staying, *_) = members(bench, 2, 20)
        later: list[object] = []
        loop, address = bench.system.loop, bench.system.address("clients")
        monkeypatch.setattr(loop, "tell_in_next_round", lambda _, each: later.append(each))
        bench.system.advance(130_000)
        assert len(bench.consumers.value) == 15
        back = HeartbeatData("c0", [], [consumer("g19", [])])
        assert heartbeat(bench, staying, back).code == 0
        while later:
            address.tell(later.pop())
            bench.system.drain()
        assert [*bench.consumers.value] == ["g19"], "its heartbeat came in time"


def test_groups_of_a_closed_connection_are_left_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection in 990 groups of ten topics each took 40 ms of the loop in one step."""
    monkeypatch.setattr(clients_file, "EXPIRED_PER_ROUND", 10)
    with clients() as bench:
        staying, first, second = members(bench, 3, 25)
        later: list[Any] = []
        loop, address = bench.system.loop, bench.system.address("clients")
        monkeypatch.setattr(loop, "tell_in_next_round", lambda _, each: later.append(each))
        bench.close(first)
        bench.close(second)
        left = [sum(len(bench.consumers.value[f"g{n}"].members) for n in range(25))]
        while later:
            address.tell(later.pop())
            bench.system.drain()
            left.append(sum(len(bench.consumers.value[f"g{n}"].members) for n in range(25)))
        assert left[0] == 65
        assert left[-1] == 25
        assert all(before - after <= 10 for before, after in pairwise(left))
        assert bench.members("g0") == ["c0"]
        assert told_of(staying)["g24"] > 0


def test_a_long_heartbeat_is_registered_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of 990 groups with ten topics each took 60 to 110 ms of the loop in one step."""
    monkeypatch.setattr(clients_file, "REGISTERED_PER_ROUND", 10)
    monkeypatch.setattr(clients_file, "NEW_GROUP", 1)
    wants = [subscription(f"T{topic}", "tag") for topic in range(4)]
    said = [consumer(f"g{each}", wants) for each in range(50)]
    command = request(RequestCode.HEART_BEAT, body=HeartbeatData("c", [], said).encode())
    assert len(command.body or b"") > READ_HERE_BYTES_MAX
    with clients() as bench:
        peer, gone = RecordingPeer(), RecordingPeer()
        later: list[Any] = []
        loop, address = bench.system.loop, bench.system.address("clients")

        def keep(to: ActorAddress, message: Any) -> None:
            if to is address:
                later.append(message)

        monkeypatch.setattr(loop, "tell_in_next_round", keep)
        for each in (peer, gone, peer):
            address.tell(Request(replace(command), each))
            bench.system.drain()
        assert len(bench.consumers.value) == 2
        gone.is_open = False
        counts = [2]
        while later:
            address.tell(later.pop(0))
            bench.system.drain()
            counts.append(len(bench.consumers.value))
        assert max(after - before for before, after in pairwise(counts)) == 2
        assert {name: len(each.members) for name, each in bench.consumers.value.items()} == {
            f"g{number}": 1 for number in range(50)
        }
        assert [each.code for each in peer.received if each.is_response] == [0, 0]


def test_new_groups_are_registered_in_rounds_however_short_their_heartbeat_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,000 of them, which get settings and retry topics, took 0.1 s in one step."""
    monkeypatch.setattr(clients_file, "REGISTERED_PER_ROUND", 10)
    monkeypatch.setattr(clients_file, "NEW_GROUPS_AT_ONCE", 3)
    monkeypatch.setattr(clients_file, "NEW_GROUP", 5)
    with clients() as bench:
        peer, address = RecordingPeer(), bench.system.address("clients")
        later: list[Any] = []
        monkeypatch.setattr(bench.system.loop, "tell_in_next_round", lambda _, m: later.append(m))
        data = HeartbeatData("c", [], [consumer(f"g{each}", []) for each in range(6)])
        address.tell(Request(request(RequestCode.HEART_BEAT, body=data.encode()), peer))
        counts = []
        bench.system.drain()
        while later:
            counts.append(len(bench.consumers.value))
            address.tell(later.pop(0))
            bench.system.drain()
        assert sorted({*counts}) == [2, 4, 6] and len(bench.consumers.value) == 6
        assert [each.code for each in peer.received if each.is_response] == [0]


def test_a_connection_can_join_a_limited_number_of_groups() -> None:
    with clients() as bench:
        peer = RecordingPeer()
        for first in range(0, GROUPS_MAX, 500):
            said = [consumer(f"g{number}", []) for number in range(first, first + 500)]
            assert heartbeat(bench, peer, HeartbeatData("c", [], said)).code == 0
        for data in (
            HeartbeatData("c", [], [consumer("one-more", [])]),
            HeartbeatData("c", [ProducerData(f"p{n}") for n in range(GROUPS_MAX)], []),
            HeartbeatData("c", [ProducerData("one-more")], []),
        ):
            last = heartbeat(bench, peer, data)
        assert (last.code, last.remark) == (1, "a client may be in at most 1000 groups")
        assert "one-more" not in bench.consumers.value
        again = HeartbeatData("c", [], [consumer("g0", [])])
        assert heartbeat(bench, peer, again).code == 0


def test_total_members_and_subscriptions_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients in 1,000 groups each took memory without a limit."""
    monkeypatch.setattr(consumer_groups, "PLACES_MAX", 50)
    with clients() as bench:
        (peer,) = members(bench, 1, 20)
        said = [consumer(f"g{each}", [subscription("T0", "x")]) for each in range(20)]
        more = heartbeat(bench, RecordingPeer(), HeartbeatData("other", [], said))
        assert (more.code, "at most" in (more.remark or "")) == (1, True)
        assert heartbeat(bench, peer, HeartbeatData("c0", [], said)).code == 0, "it is there"
        bench.close(peer)
        assert heartbeat(bench, RecordingPeer(), HeartbeatData("other", [], said)).code == 0


@pytest.mark.parametrize(
    "long",
    [
        SubscriptionData("T", "x" * 60_000),
        SubscriptionData("T", "x", tags_set=["x" * 60_000]),
        SubscriptionData("T", "x", code_set=list(range(1_000))),
    ],
)
def test_long_subscriptions_count_for_more(
    long: SubscriptionData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection kept a mebibyte in each of its thousand groups."""
    monkeypatch.setattr(consumer_groups, "PLACES_MAX", 100)
    with clients() as bench:
        peer = RecordingPeer()
        assert heartbeat(bench, peer, HeartbeatData("c", [], [consumer("g0", [long])])).code == 0
        for _ in range(2):
            said = HeartbeatData("c", [], [consumer("g1", [long])])
            assert heartbeat(bench, peer, said).code == 1
            again = HeartbeatData("c", [], [consumer("g0", [long])])
            assert heartbeat(bench, peer, again).code == 0
        short = HeartbeatData("c", [], [consumer("g0", [subscription("T", "x")])])
        assert heartbeat(bench, peer, short).code == 0
        assert heartbeat(bench, peer, said).code == 0


def test_long_client_ids_are_refused() -> None:
    """The history of a group kept 64 of them, a mebibyte each, after their client had left."""
    with clients() as bench:
        for said in (
            HeartbeatData("c" * 1_025, [ProducerData("p")], []),
            HeartbeatData("c", [], [ConsumerData("g", "m" * 1_025, None, None, [])]),
        ):
            answer = heartbeat(bench, RecordingPeer(), said)
            assert (answer.code, "1024" in (answer.remark or "")) == (1, True)
        assert heartbeat(bench, RecordingPeer(), HeartbeatData("c" * 1_024, [], [])).code == 0


def test_long_client_lists_are_encoded_on_a_thread() -> None:
    """40 clients in 1,000 producer groups each made one answer that held the loop up for 0.35 s."""
    with clients() as bench:
        peer = RecordingPeer()
        many = 3 * ENCODED_HERE_MAX
        said = HeartbeatData("c", [ProducerData(f"p{number}") for number in range(many)], [])
        assert heartbeat(bench, peer, said).code == 0
        assert heartbeat(bench, RecordingPeer(), said).code == 0
        answer = ask(bench.system, "clients", request(RequestCode.GET_ALL_PRODUCER_INFO))
        assert bytes(answer.body or b"").count(b'"clientId":"c"') == 2 * many
        wants = [subscription(f"T{number}") for number in range(many + 1)]
        said = HeartbeatData("c", [], [consumer("g", wants)])
        assert heartbeat(bench, RecordingPeer(), said).code == 0
        command = request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        answer = ask(bench.system, "clients", command)
        found = ConsumerConnection.decode(answer.body)
        assert len(found.subscription_table) == many + 1
        queues = [MessageQueue("T", "broker", number) for number in range(many)]
        body = LockBatchRequest("c", "g", queues).encode()
        answer = ask(bench.system, "clients", request(RequestCode.LOCK_BATCH_MQ, body=body))
        assert len(LockBatchResponse.decode(answer.body).lock_ok_mq_set) == many
        handled = {each.name: each.handled_count for each in bench.system.figures()}
        assert handled["table_encoder"] == 6, "three long heartbeats, and three answers"


def test_a_long_heartbeat_is_read_off_the_loop() -> None:
    """10,000 subscriptions held all other requests up for 0.1 s while they were read."""
    with clients() as bench:
        encoder, peer = bench.system.address("table_encoder"), RecordingPeer()
        short = HeartbeatData("c", [], [consumer("G", [subscription("T0")])])
        assert heartbeat(bench, peer, short).code == 0 and encoder.handled == 0
        said = [subscription(f"T{number}") for number in range(500)]
        assert heartbeat(bench, peer, HeartbeatData("c", [], [consumer("G", said)])).code == 0
        assert encoder.handled == 1
        assert len(bench.consumers.value["G"].subscriptions) == 500


def test_a_long_heartbeat_is_refused_as_a_short_one_is() -> None:
    with clients() as bench:
        for padding in ("", " " * 20_000):
            command = request(RequestCode.HEART_BEAT, body=f"[1]{padding}".encode())
            answer = ask(bench.system, "clients", command)
            assert answer.code == 1 and "JSONException" in (answer.remark or "")


def test_a_client_that_closes_while_its_heartbeat_is_read_is_not_registered() -> None:
    with clients() as bench:
        peer = RecordingPeer()
        said = [subscription(f"T{number}") for number in range(500)]
        data = HeartbeatData("c", [], [consumer("G", said)])
        command = request(RequestCode.HEART_BEAT, body=data.encode())
        bench.system.address("clients").tell(Request(command, peer))
        peer.is_open = False
        bench.close(peer)
        assert "G" not in bench.consumers.value


def test_producers_without_a_heartbeat_leave_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scan sorted 100,000 of them every ten seconds: 0.15 s."""
    monkeypatch.setattr(clients_file, "EXPIRED_PER_ROUND", 10)
    with clients() as bench:
        peer = RecordingPeer()
        data = HeartbeatData("c", [ProducerData(f"p{number}") for number in range(25)], [])
        assert heartbeat(bench, peer, data).code == 0
        later: list[object] = []
        loop, address = bench.system.loop, bench.system.address("clients")
        monkeypatch.setattr(loop, "tell_in_next_round", lambda _, each: later.append(each))
        bench.system.advance(130_000)
        assert len(bench.producers.value) == 15
        assert heartbeat(bench, peer, HeartbeatData("c", [ProducerData("p24")], [])).code == 0
        while later:
            address.tell(later.pop())
            bench.system.drain()
        assert [*bench.producers.value] == ["p24"], "its heartbeat came in time"


def test_a_heartbeat_has_a_limited_number_of_subscriptions() -> None:
    """25,000 of them fit into a MiB if their names are short: 0.2 s."""
    with clients() as bench:
        said = [SubscriptionData(f"T{number}") for number in range(SUBSCRIPTIONS_MAX)]
        groups = [consumer("G", said), consumer("H", said[:1])]
        body = dumps(
            {
                "clientID": "c",
                "consumerDataSet": [
                    {"groupName": each.group_name, "subscriptionDataSet": wants}
                    for each in groups
                    if (wants := [{"topic": one.topic} for one in each.subscription_data_set])
                ],
            }
        ).encode()
        answer = ask(bench.system, "clients", request(RequestCode.HEART_BEAT, body=body))
        remark = f"a client may have at most {SUBSCRIPTIONS_MAX} subscriptions"
        assert (answer.code, answer.remark) == (1, remark)
        assert not bench.consumers.value


def test_a_repeated_heartbeat_looks_at_each_subscription_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10,000 subscriptions were compared twice, field by field by name: 0.14 s."""
    looks: list[str] = []

    def counted(one: SubscriptionData, other: object) -> bool:
        looks.append(one.topic)
        return Value.__eq__(one, other)

    with clients() as bench:
        peer = RecordingPeer()
        said = [subscription(f"T{number}") for number in range(50)]
        for _ in range(2):
            monkeypatch.setattr(SubscriptionData, "__eq__", counted, raising=False)
            heartbeat(bench, peer, HeartbeatData("c", [], [consumer("G", said)]))
        assert len(looks) == 50
