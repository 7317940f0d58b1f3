"""Who is in which group, when many come and go at once."""

from actors.network.request import PeerClosed
from actors.tables.consumer_views import Producing
from protocol.bodies import HeartbeatData, ProducerData
from tests.actors.consumers.test_clients import clients
from tests.support.peers import RecordingPeer


def test_many_who_come_and_go_at_once_are_published_once() -> None:
    with clients() as bench:
        peers = [RecordingPeer() for _ in range(50)]
        seen: list[int] = []
        for peer in peers:
            bench.heartbeat(peer, HeartbeatData("client", [ProducerData("P")], []))
            seen.append(len(bench.producers.value["P"]))
        assert seen == list(range(1, 51))
        for peer in peers[10:]:
            bench.system.address("clients").tell(PeerClosed(peer))
        before = bench.producers.value
        bench.system.drain()
        left = tuple(Producing(peer, None) for peer in peers[:10])
        assert len(before["P"]) == 50 and bench.producers.value == {"P": left}
