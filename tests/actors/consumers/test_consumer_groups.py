"""Group members when many clients join and leave at once."""

import pytest
from structlog.testing import capture_logs

from actors.access.access_state import new_guard
from actors.access.grant import Grant
from actors.access.refusals import Refusals
from actors.access.rights import BROKER_RIGHTS
from actors.consumers import consumer_groups
from actors.consumers.consumer_groups import CLIENT_EXPIRES_MS, Producers
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import RateLimitedLog
from actors.network.messages import PeerClosed
from actors.tables.consumer_views import Member, Producing
from protocol.bodies import HeartbeatData, ProducerData, SubscriptionData
from protocol.codes import RequestCode
from protocol.tags import TAG_EXPRESSION_CHARS_MAX, java_hash_code
from storage.access.acl_file import Account
from storage.access.acl_files import AclSnapshot
from tests.actors.consumers.test_clients import Bench, clients, consumer
from tests.support.brokers import subscription
from tests.support.peers import RecordingPeer, ask, request


def test_an_accounts_access_is_checked_once_for_all_its_connections() -> None:
    refusals = Refusals(lambda: 0, RateLimitedLog(lambda: 0))
    guard = new_guard(SnapshotRef(AclSnapshot()), BROKER_RIGHTS, lambda: 0, refusals)

    def grant(name: str, address: str, *, is_white: bool = False) -> Grant:
        account, seen = Account(name, ()), guard.accounts.value
        return guard.granted(
            account,
            seen,
            is_white=is_white,
            secret=account.secrets[0] if account.secrets else None,
            address=address,
            is_encrypted=False,
        )

    producers = Producers()
    for number in range(300):
        peer = RecordingPeer()
        white = number % 3 == 2
        address = "10.0.0.1" if white else f"192.0.2.{number}"
        said = grant(("one", "two", "")[number % 3], address, is_white=white)
        assert producers.register("P", Member(peer, f"{number}", 0, 0, 0.0, grant=said))
    assert [len(each.peers) for each in producers.view["P"]] == [100, 100, 100]
    assert [each.may_send("T") for each in producers.view["P"]] == [False, False, True]
    before = producers.view
    producers.register("P", Member(peer, "299", 0, 0, 0.0, grant=grant("", address, is_white=True)))
    assert producers.view is before, "a heartbeat of the same account changes nothing"
    producers.register("P", Member(peer, "299", 0, 0, 0.0, grant=grant("one", address)))
    assert [len(each.peers) for each in producers.view["P"]] == [101, 100, 99]


def test_many_joins_and_leaves_are_published_once() -> None:
    with clients() as bench:
        peers = [RecordingPeer() for _ in range(50)]
        seen: list[int] = []
        for peer in peers:
            bench.heartbeat(peer, HeartbeatData("client", [ProducerData("P")], []))
            (same,) = bench.producers.value["P"]
            seen.append(len(same.peers))
        assert seen == list(range(1, 51))
        for peer in peers[10:]:
            bench.system.address("clients").tell(PeerClosed(peer))
        before = bench.producers.value
        bench.system.drain()
        assert len(before["P"][0].peers) == 50
        assert bench.producers.value == {"P": (Producing(tuple(peers[:10])),)}


def wanted(bench: Bench) -> str:
    return bench.consumers.value["G"].subscriptions["T"].data.sub_string


def test_a_changed_subscription_applies_even_if_the_clients_clock_went_back() -> None:
    with clients() as bench, capture_logs() as lines:
        first, second = RecordingPeer(), RecordingPeer()
        bench.heartbeat(first, consumer("a", subscription("T", "A", 100)))
        bench.heartbeat(second, consumer("b", subscription("T", "A", 100)))
        bench.heartbeat(first, consumer("a", subscription("T", "B", 50)))
        assert wanted(bench) == "B"
        bench.heartbeat(second, consumer("b", subscription("T", "A", 100)))
        bench.heartbeat(first, consumer("a", subscription("T", "B", 50)))
        assert wanted(bench) == "B", "an unchanged heartbeat undoes nothing"
        assert bench.consumers.value["G"].subscriptions["T"].data.sub_version >= 100, (
            "pulls name it"
        )
        bench.heartbeat(first, consumer("a", subscription("T", "C", 60)))
        assert wanted(bench) == "C"
        bench.heartbeat(second, consumer("b", subscription("T", "D", 200)))
        assert wanted(bench) == "D"
    late = "subscription changed with an older version"
    assert [each["topics"] for each in lines if each["event"] == late] == [["T"]]


def test_a_late_heartbeat_does_not_undo_a_subscription_change() -> None:
    with clients() as bench:
        peer = RecordingPeer()
        bench.heartbeat(peer, consumer("a", subscription("T", "A", 1)))
        bench.heartbeat(peer, consumer("a", subscription("T", "B", 2)))
        bench.heartbeat(peer, consumer("a", subscription("T", "A", 1)))
        assert wanted(bench) == "B"


def test_an_older_subscription_of_a_member_that_joins_changes_nothing() -> None:
    with clients() as bench:
        bench.heartbeat(RecordingPeer(), consumer("a", subscription("T", "B", 100)))
        bench.heartbeat(RecordingPeer(), consumer("b", subscription("T", "A", 50)))
        assert wanted(bench) == "B"


def test_a_client_id_is_passed_on_when_its_holder_leaves() -> None:
    producers, peers = Producers(), [RecordingPeer() for _ in range(3)]

    def join(number: int, client_id: str = "c", group: str = "P") -> None:
        producers.register(group, Member(peers[number], client_id, 0, 0, 0.0))

    def found(client_id: str = "c") -> int | None:
        peer = producers.find(client_id)
        return None if peer is None else [each.peer_id for each in peers].index(peer.peer_id)

    for number in range(3):
        join(number)
    join(2, group="Q")
    assert found() == 2, "the last one of an account"
    producers.unregister("P", peers[2].peer_id)
    assert found() == 2, "it is in another group"
    producers.unregister("Q", peers[2].peer_id)
    assert found() == 1
    join(1, "other")
    assert (found(), found("other")) == (0, 1)
    producers.peer_closed(peers[1].peer_id)
    producers.expire("P", peers[0].peer_id, 1.0)
    assert (found(), found("other")) == (0, None)
    producers.expire("P", peers[0].peer_id, CLIENT_EXPIRES_MS + 1.0)
    assert found() is None and not producers.groups
    assert not producers._named and not producers._holders


def test_changing_client_ids_leave_nothing_behind() -> None:
    producers, peer = Producers(), RecordingPeer()
    for number in range(100):
        producers.register("P", Member(peer, f"client-{number}", 0, 0, 0.0))
    assert len(producers._named) == len(producers._holders) == 1
    assert producers.find("client-99") is peer and producers.find("client-98") is None


def test_a_member_that_joins_does_not_have_the_tags_of_its_groups_hashed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A join of 50 groups with 0.9 MB of tags each kept the loop from all others for 2.8 s."""
    hashed: list[str] = []

    def note(tag: str) -> int:
        hashed.append(tag)
        return java_hash_code(tag)

    monkeypatch.setattr(consumer_groups, "java_hash_code", note)
    with clients() as bench:
        bench.heartbeat(RecordingPeer(), consumer("c1", subscription("T", "A||B")))
        assert sorted(hashed) == ["A", "B"]
        bench.heartbeat(RecordingPeer(), consumer("c2", subscription("T", "A||B")))
        assert len(hashed) == 2
        bench.heartbeat(RecordingPeer(), consumer("c2", subscription("T", "C", version=2)))
        assert hashed[2:] == ["C"]
        assert bench.consumers.value["G"].subscriptions["T"].codes == frozenset(
            (java_hash_code("C"),)
        )


def test_a_heartbeat_with_more_tags_than_expressions_can_have_is_refused_before_it_is_read() -> (
    None
):
    """Tags are hashed on the loop, where others wait: a body full of them took 60 ms."""
    tag, long = "t" * (TAG_EXPRESSION_CHARS_MAX // 2), "t" * (TAG_EXPRESSION_CHARS_MAX + 1)
    usual = [SubscriptionData(f"T{each}", "a", [tag]) for each in range(16)]
    many = [*usual, SubscriptionData("U", "a", [tag])]
    with clients() as bench:
        for said, code in ((many, 1), ([SubscriptionData("T", "a", [long])], 23), (usual, 0)):
            command = request(RequestCode.HEART_BEAT, body=consumer("c1", *said).encode())
            answer = ask(bench.system, "clients", command, RecordingPeer())
            assert answer.code == code
            assert ("G" in bench.consumers.value) == (code == 0)
