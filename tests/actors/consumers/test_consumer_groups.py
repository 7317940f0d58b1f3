"""Who is in which group, when many come and go at once."""

from actors.access.grant import Grant
from actors.access.guard import new_guard
from actors.access.refusals import Refusals
from actors.access.rights import BROKER_RIGHTS
from actors.consumers.consumer_groups import Producers
from actors.engine.published import Published
from actors.engine.rarely import Rarely
from actors.network.request import PeerClosed
from actors.tables.consumer_views import Member, Producing
from protocol.bodies import HeartbeatData, ProducerData
from storage.access.acl_file import Account
from storage.access.acl_files import AclSnapshot
from tests.actors.consumers.test_clients import clients
from tests.support.peers import RecordingPeer


def test_who_has_the_same_account_is_judged_once_however_many_connections_it_opens() -> None:
    refusals = Refusals(lambda: 0, Rarely(lambda: 0))
    guard = new_guard(Published(AclSnapshot()), BROKER_RIGHTS, lambda: 0, refusals)

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


def test_many_who_come_and_go_at_once_are_published_once() -> None:
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
