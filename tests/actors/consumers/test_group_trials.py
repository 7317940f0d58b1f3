"""Groups under seeds: calls to clients that come and go, offsets under commits and resets."""

from random import Random

import pytest

from actors.network.client_calls import WAITING_MAX
from actors.network.messages import CallClient, CallEnd, ClientAnswer, PeerClosed
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from tests.support.brokers import SimulatedBroker
from tests.support.groups import Client, ask, update
from tests.support.peers import RecordingPeer, Told

RESET_MS = 10_000


@pytest.mark.trial(short=6, long=500)
def test_every_call_ends_once_whatever_happens_to_its_client(seed: int) -> None:
    random = Random(seed)
    made = SimulatedBroker(seed)
    asker, address = Told("asker"), made.system.address("client_calls")
    peers = [RecordingPeer() for _ in range(4)]
    asked: list[tuple[int, RecordingPeer]] = []
    ends: dict[int, CallEnd] = {}
    pending: list[tuple[RecordingPeer, RemotingCommand]] = []

    def note() -> None:
        for done in asker.take():
            assert done.context not in ends, "it has ended before"
            ends[done.context] = done.end
            assert (done.answer is not None) == (done.end is CallEnd.ANSWERED)
            if done.answer is not None:  # that of this very question
                assert done.answer.remark == f"answer to {done.context}"

    for number in range(120):
        what = random.random()
        peer = random.choice(peers)
        if what < 0.5:
            command = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, {"n": str(number)})
            timeout_ms = random.choice((100, 1000, 5000))
            address.tell(CallClient(peer, command, asker.address, number, timeout_ms))
            asked.append((number, peer))
        elif what < 0.8 and pending:
            by, question = pending.pop(random.randrange(len(pending)))
            remark = f"answer to {(question.fields or {})['n']}"
            for _ in range(random.choice((1, 1, 2))):  # some answer twice
                address.tell(ClientAnswer(question.answer(remark=remark), by))
        elif what < 0.85:
            peer.is_open = False
            address.tell(PeerClosed(peer))
            peers[peers.index(peer)] = RecordingPeer()
        elif what < 0.87:
            address.tell("a message without a handler")
            made.system.advance(2000)
        else:
            made.system.advance(random.choice((1, 50, 700)))
        made.system.drain()
        for each in peers:
            pending += [(each, notice) for notice in each.notices()]
        note()
    made.system.advance(10_000)
    note()
    assert ends.keys() == {number for number, _ in asked}
    assert len(asked) < WAITING_MAX


@pytest.mark.trial(short=2, long=500)
def test_stale_members_undo_no_reset_and_no_offset_goes_back(seed: int) -> None:
    """Against a model of one queue: what may be stored, and what may not."""
    random = Random(seed)
    made = SimulatedBroker(seed)
    made.make_topic(queues=1)
    for _ in range(30):
        made.send(queue_id=0)
    made.ask(update("consumers", 10))
    ports = iter(range(1001, 2000))
    members: list[tuple[Client, float]] = []
    outsiders: list[Client] = []
    stored, reset_ms = 10, made.system.clock.monotonic_ms()  # an order from outside is a reset
    for _ in range(80):
        made.system.advance(random.choice((1, 50, 2_000, 6_000)))
        now_ms = made.system.clock.monotonic_ms()
        what = random.random()
        if what < 0.15:
            client = Client(made, f"c{next(ports)}", next(ports))
            members.append((client, now_ms))
        elif what < 0.25 and members:
            client, _ = members.pop(random.randrange(len(members)))
            client.sign_off()
            outsiders.append(client)
        elif what < 0.35:
            goal = random.choice((-1, 0))
            answer = ask(
                made,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                topic="Topic",
                group="consumers",
                timestamp=goal,
                isForce="true",
            )
            if members:
                assert answer.code == 0
                place = 30 if goal == -1 else 0
                reset_ms = now_ms if place != stored else reset_ms
                stored = place
            else:
                assert answer.code == 206
        else:
            everybody = [*members, *((each, -1.0) for each in outsiders)]
            if not everybody:
                continue
            client, joined_ms = random.choice(everybody)
            for each, _ in members:
                each.heartbeat()
            offset = random.randrange(31)
            client.commit(offset)
            is_member = joined_ms >= 0
            if now_ms - reset_ms < RESET_MS:
                believed = offset >= stored and is_member and joined_ms > reset_ms
            else:
                believed = offset >= stored or is_member
            stored = offset if believed else stored
        fields = {"consumerGroup": "consumers", "topic": "Topic", "queueId": "0"}
        found = made.ask(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields))
        assert int((found.fields or {})["offset"]) == stored
