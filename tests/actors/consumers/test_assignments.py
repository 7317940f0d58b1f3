"""Tests of actors/consumers/assignments.py: the queues that a broker assigns to a client."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from actors.consumers import assignments
from actors.consumers.assignments import Assignments
from actors.engine.interfaces import SnapshotRef
from actors.engine.supervisor import ChildSpec
from actors.naming.messages import AskForRoute, RouteAnswered
from actors.tables.consumer_views import ConsumerView, Member, Subscription
from actors.tables.request_modes import Modes
from protocol.bodies import SubscriptionData
from protocol.bodies_assignment import AssignmentAnswer, AssignmentQuery, RequestMode
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from tests.support.peers import RecordingPeer, Told, request, simulated, tell
from troupemq.testing.simulation import SimulatedSystem

QUEUES = [("a", 3), ("b", 2)]
"""Readable queues of topic T."""


@dataclass
class Bench:
    """Assignments with its snapshots, and the name server's link."""

    system: SimulatedSystem
    consumers: SnapshotRef[Mapping[str, ConsumerView]] = field(
        default_factory=lambda: SnapshotRef({})
    )
    modes: SnapshotRef[Modes] = field(default_factory=lambda: SnapshotRef({}))
    registration: Told = field(default_factory=lambda: Told("registration"))
    encoder: Told = field(default_factory=lambda: Told("table_encoder"))
    peer: RecordingPeer = field(default_factory=RecordingPeer)

    def join(self, *client_ids: str, topics: Sequence[str] = ("T",)) -> None:
        """Make these clients the members of group G."""
        peers = [(RecordingPeer(), each) for each in client_ids]
        members = {peer.peer_id: Member(peer, each, 0, 513, 0.0) for peer, each in peers}
        wanted = {topic: Subscription(SubscriptionData(topic), None) for topic in topics}
        self.consumers.value = {"G": ConsumerView("CLUSTERING", wanted, members)}

    def pop(self, share: int = 0) -> None:
        """Set POP mode for topic T and group G."""
        self.modes.value = {"T": {"G": RequestMode("G", "POP", share, "T")}}

    def ask(self, client_id: str = "c1", **changed: str) -> None:
        values = {"topic": "T", "strategy_name": "AVG", "message_model": "CLUSTERING"} | changed
        body = AssignmentQuery(client_id, "G", **values).encode()
        tell(
            self.system, "assignments", request(RequestCode.QUERY_ASSIGNMENT, body=body), self.peer
        )

    def find(self, queues: Sequence[tuple[str, int]] | None = QUEUES, topic: str = "T") -> None:
        """Answer the one pending question for a route."""
        assert [each.topic for each in self.asked()] == [topic]
        self.tell(RouteAnswered(topic, queues))

    def tell(self, message: RouteAnswered) -> None:
        self.system.address("assignments").tell(message)
        self.system.drain()

    def asked(self) -> list[AskForRoute]:
        return self.registration.take()

    def answer(self) -> RemotingCommand:
        (answer,), self.peer.received = self.peer.received, []
        return answer

    def queues(self) -> list[str] | None:
        """Return the queues of the one answer, as broker, id and mode."""
        answer = self.answer()
        assert answer.code == 0
        found = AssignmentAnswer.decode(answer.body).message_queue_assignments
        return (
            None
            if found is None
            else sorted(
                f"{each.message_queue.broker_name}{each.message_queue.queue_id} {each.mode}"
                for each in found
            )
        )

    def assigned(self, client_id: str = "c1", **changed: str) -> list[str] | None:
        """Return the queues of a client; the route is known."""
        self.ask(client_id, **changed)
        return self.queues()


@contextmanager
def bench(*members: str, known: bool = True) -> Iterator[Bench]:
    with simulated() as system:
        made = Bench(system)
        system.start(
            ChildSpec(
                "assignments",
                lambda _: Assignments(
                    consumers=made.consumers,
                    modes=made.modes,
                    registration=made.registration.address,
                    encoder=made.encoder.address,
                ),
            )
        )
        made.join(*(members or ("c1",)))
        if known:
            made.ask(message_model="BROADCASTING")
            made.find()
            made.peer.received.clear()
        yield made


@pytest.mark.parametrize(
    ("strategy", "of_c1", "of_c2"),
    [
        ("AVG", ["a0 PULL", "a1 PULL", "a2 PULL"], ["b0 PULL", "b1 PULL"]),
        ("AVG_BY_CIRCLE", ["a0 PULL", "a2 PULL", "b1 PULL"], ["a1 PULL", "b0 PULL"]),
    ],
)
def test_members_divide_the_queues_of_all_brokers(
    strategy: str, of_c1: list[str], of_c2: list[str]
) -> None:
    with bench("c2", "c1") as made:
        assert made.assigned("c1", strategy_name=strategy) == of_c1
        assert made.assigned("c2", strategy_name=strategy) == of_c2
        assert made.assigned("stranger", strategy_name=strategy) == []
        assert made.assigned("c1", strategy_name="MACHINE_ROOM") is None
        assert made.assigned("", strategy_name=strategy) is None
        assert made.asked() == []


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
def test_client_with_two_connections_has_one_share(strategy: str) -> None:
    with bench("c1", "c2", "c1") as made:
        shares = [made.assigned(each, strategy_name=strategy) or [] for each in ("c1", "c2")]
        assert list(map(len, shares)) == [3, 2]


def test_broadcasting_members_get_every_queue_whatever_their_rule() -> None:
    with bench("c1", "c2") as made:
        wanted = ["a0 PULL", "a1 PULL", "a2 PULL", "b0 PULL", "b1 PULL"]
        assert made.assigned(strategy_name="x", message_model="BROADCASTING") == wanted
        made.consumers.value = {}
        assert made.assigned(message_model="BROADCASTING") == wanted
        assert made.assigned() is None, "an unknown group has no members"


def test_pop_members_get_one_queue_of_each_broker() -> None:
    with bench("c1", "c2", "c3") as made:
        for share in (0, -1, 2, 8):
            made.pop(share)
            assert made.assigned("c2") == ["a-1 POP", "b-1 POP"]
            assert made.assigned("stranger") == ["a-1 POP", "b-1 POP"]


def test_pop_members_share_the_queues_of_those_behind_them() -> None:
    with bench("c1", "c2", "c3") as made:
        made.pop(share=1)
        assert made.assigned("c1") == ["a0 POP", "a1 POP", "a2 POP", "b0 POP"]
        assert made.assigned("c3") == ["a0 POP", "a1 POP", "b1 POP"]
        assert made.assigned("stranger") == []
        made.join(*(f"c{number}" for number in range(8)))
        assert made.assigned("c1") == ["a1 POP"], "with more members than queues each has one"
        assert made.assigned("c6") == ["a1 POP"]


def test_no_retry_topic_is_pulled_where_pop_brings_retries() -> None:
    with bench(known=False) as made:
        made.ask(topic="%RETRY%G")
        made.find([("a", 1)], "%RETRY%G")
        assert made.queues() == ["a0 PULL"]
        made.pop()
        made.join("c1", topics=("T", "%RETRY%G"))
        assert made.assigned(topic="%RETRY%G") == []
        made.join("c1", topics=("T", "Other", "%RETRY%G"))
        assert made.assigned(topic="%RETRY%G") == ["a0 PULL"], "Other is pulled"


def test_the_retry_topics_of_5_x_are_no_reason_to_ask_again() -> None:
    """A client asks every second for queues of a topic for which it gets no list."""
    with bench(known=False) as made:
        made.ask(topic="%RETRY%G_T")
        made.find(None, "%RETRY%G_T")
        assert made.queues() == []
        made.ask(topic="%RETRY%G")
        made.find(None, "%RETRY%G")
        assert made.queues() is None, "its first heartbeat creates it"


def test_requests_for_one_topic_wait_for_one_route() -> None:
    with bench(known=False) as made:
        made.ask()
        made.ask()
        made.find()
        assert len(made.peer.received) == 2
        made.peer.received.clear()
        made.system.advance(29_999)
        assert made.assigned() is not None
        assert made.asked() == []
        made.system.advance(1)
        assert made.assigned() == made.assigned(), "the former route serves"
        made.find([("a", 1)])
        assert made.assigned() == ["a0 PULL"]


def test_without_a_route_the_client_keeps_its_queues_and_asks_again() -> None:
    with bench(known=False) as made:
        made.ask()
        made.system.advance(2499)
        assert made.peer.received == []
        made.system.advance(1)
        assert made.queues() is None
        made.asked()
        made.tell(RouteAnswered("T", None))
        assert made.assigned() is None
        assert made.asked() == []
        made.system.advance(1000)
        made.ask()
        made.find()
        assert made.queues() == ["a0 PULL", "a1 PULL", "a2 PULL", "b0 PULL", "b1 PULL"]


def test_a_route_outlives_the_name_servers() -> None:
    with bench() as made:
        before = made.assigned()
        made.system.advance(30_000)
        assert made.assigned() == before
        made.asked()
        made.tell(RouteAnswered("T", None, is_known=False))
        assert made.assigned() == before
        made.system.advance(30_000)
        made.ask()
        made.peer.received.clear()
        made.tell(RouteAnswered("T", None))
        assert made.assigned() is None, "the topic is deleted"


def test_routes_and_requests_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments, "ROUTES_MAX", 1)
    monkeypatch.setattr(assignments, "WAITING_MAX", 1)
    with bench() as made:
        made.ask(topic="U")
        made.ask(topic="V")
        assert made.answer().code == 2
        made.find([("a", 1)], "U")
        assert made.queues() == ["a0 PULL"]
        made.ask()
        assert [each.topic for each in made.asked()] == ["T"], "its route has gone"


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"topic": None}, "topic"),
        ({"consumer_group": None}, "consumerGroup"),
        ({"message_model": None}, "messageModel"),
        ({"message_model": "SOME"}, "messageModel"),
    ],
)
def test_an_incomplete_question_gets_the_code_of_5_x(
    changed: dict[str, str | None], name: str
) -> None:
    values = {"topic": "T", "consumer_group": "G", "message_model": "CLUSTERING"} | changed
    with bench() as made:
        command = request(
            RequestCode.QUERY_ASSIGNMENT, body=AssignmentQuery("c", **values).encode()
        )
        tell(made.system, "assignments", command, made.peer)
        answer = made.answer()
        assert (answer.code, answer.remark) == (
            1,
            f"java.lang.NullPointerException: {name} is null",
        )


def test_assignment_of_many_queues_is_encoded_on_a_thread() -> None:
    with bench(known=False) as made:
        for _ in range(3):
            made.ask(message_model="BROADCASTING")
        made.find([("a", 900), ("b", 101)])
        assert made.peer.received == []
        encoded = [each.body.encode() for each in made.encoder.take()]
        assert len(encoded) == 3
        found = AssignmentAnswer.decode(encoded[0]).message_queue_assignments or []
        assert len(found) == 1_001 and found[-1].message_queue.queue_id == 100


def test_requests_that_waited_for_a_route_are_answered_in_rounds() -> None:
    with bench(known=False) as made:
        for _ in range(60):
            made.ask()
        assert made.registration.take()
        made.system.address("assignments").tell(RouteAnswered("T", QUEUES))
        made.system.run_until(lambda: bool(made.peer.received))
        assert len(made.peer.received) < 60
        made.system.drain()
        assert len(made.peer.received) == 60
