"""Tests of actors/naming/registration_reader.py: large registrations."""

import pytest

from actors.engine.actor_address import ActorAddress
from actors.naming.messages import FromReader, PassedOn
from actors.naming.namesrv import Namesrv
from actors.naming.route_table import topics_body
from actors.network.messages import PeerClosed, Request
from protocol.bodies import TopicRouteData
from protocol.bodies_admin import TopicList
from protocol.bodies_tables import TopicConfig
from protocol.codes import RequestCode, ResponseCode
from tests.support.name_servers import name_server, registration, route
from tests.support.peers import RecordingPeer, ask, request


def large(count: int = 3_000, version: int = 1) -> list[TopicConfig]:
    return [TopicConfig(f"topic-{number}", version, version, 6) for number in range(count)]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_large_registration_is_decoded_on_a_thread_with_the_same_result(compressed: bool) -> None:
    with name_server() as system:
        answer = ask(system, "namesrv", registration(*large(), compressed=compressed))
        assert (answer.code, answer.fields, answer.body) == (0, {}, None)
        assert system.address("reader").handled > 0
        found = TopicRouteData.decode(route(system, "topic-2999").body)
        assert found.queue_datas[0].write_queue_nums == 1
        listed = ask(system, "namesrv", request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        assert len(TopicList.decode(listed.body).topic_list) == 3_000


def test_requests_after_a_large_registration_wait_for_it() -> None:
    peer = RecordingPeer()
    first = registration(*large(), version=1)
    second = registration(TopicConfig("topic-0", 9, 9), version=2)
    with name_server() as system:
        address = system.address("namesrv")
        for command in (first, second):
            address.tell(Request(command, peer))
        system.drain()
        assert [answer.opaque for answer in peer.received] == [first.opaque, second.opaque]
        found = TopicRouteData.decode(route(system, "topic-0").body)
        assert found.queue_datas[0].write_queue_nums == 9
        address.tell(Request(registration(*large(version=3), version=3), peer))
        address.tell(PeerClosed(peer))
        system.drain()
        assert route(system, "topic-1").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_large_registration_is_taken_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """500,000 topics at once held a name server up for 0.8 s."""
    monkeypatch.setattr("actors.naming.namesrv.OF_READER_AT_ONCE", 2, raising=False)
    with name_server() as system:
        rounds, usual = [], system.loop.tell_in_next_round

        def counted(to: ActorAddress, message: object) -> None:
            rounds.append(message)
            usual(to, message)

        monkeypatch.setattr(system.loop, "tell_in_next_round", counted)
        answer = ask(system, "namesrv", registration(*large(), compressed=True))
        assert answer.code == 0 and len(rounds) >= 4, "six slices, their begin and their end"
        assert route(system, "topic-2999").code == 0


def test_waiting_requests_of_a_failed_name_server_are_refused() -> None:
    peer = RecordingPeer()
    with name_server() as system:
        namesrv, goodbye = system.address("namesrv"), RequestCode.UNREGISTER_BROKER
        commands = [request(goodbye, {}) for _ in range(3)]
        for command in commands:
            namesrv.tell(FromReader(PassedOn(Request(command, peer))))
        (actor,) = [each for each in system.live if isinstance(each, Namesrv)]
        system.run_until(lambda: bool(actor._from_reader))
        actor.on_failure()
        system.drain()
        refused = [answer.opaque for answer in peer.received]
        assert sorted(refused) == sorted(each.opaque for each in commands)


def test_a_broker_that_disconnects_after_a_large_registration_is_removed() -> None:
    identity = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911"}
    identity |= {"clusterName": "C1", "brokerId": "0"}
    peer = RecordingPeer()
    with name_server() as system:
        address = system.address("namesrv")
        address.tell(Request(registration(*large()), peer))
        address.tell(Request(request(RequestCode.UNREGISTER_BROKER, identity), peer))
        system.drain()
        assert [answer.code for answer in peer.received] == [0, 0]
        assert route(system, "topic-1").code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("spoil", [(b'"perm":6', b'"perm":{}'), (b'"perm":6', b'"perm":"x"')])
def test_an_invalid_large_registration_changes_nothing(
    spoil: tuple[bytes, bytes],
) -> None:
    with name_server() as system:
        command = registration(*large(), crc=0)
        body = bytes(command.body or b"")
        at = body.rindex(spoil[0])
        command.body = body[:at] + body[at:].replace(*spoil, 1)
        answer = ask(system, "namesrv", command)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert route(system, "topic-1").code == ResponseCode.TOPIC_NOT_EXIST
        assert ask(system, "namesrv", registration(*large(), crc=7)).remark == "crc32 not match"
        assert ask(system, "namesrv", registration(*large())).code == 0


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b"], ['a"b'], ["a\\b", "\x7f"], ["ä"]])
def test_a_list_of_topics_is_written_as_fastjson_writes_it(names: list[str]) -> None:
    assert topics_body(names) == TopicList(names).encode()
