"""Locks on queues: granted, renewed, lost."""

from collections.abc import Iterator
from typing import cast

import pytest

from protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueue
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from tests.troupemq.client.hand_tasks import HandTasks
from tests.troupemq.fake_server import FakeServer, serve_routes
from troupemq.client import message
from troupemq.client.connection.calls import Calls
from troupemq.client.connection.client import Client
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.queue_locks import MemberLocks
from troupemq.client.errors import ClientError, RequestTimeout


class Bench:
    """A broker that grants what it is told to, and one member with two queues."""

    def __init__(self, namesrv: FakeServer, server: FakeServer) -> None:
        self.server = server
        self.granted = {0, 1}
        self.lost: list[ProcessQueue] = []
        self.client = Client(namesrv.address, "me")
        self.tasks = HandTasks()
        serve_routes(namesrv, {"b": server}, {"T": 2})
        server.on(RequestCode.LOCK_BATCH_MQ, self._lock)
        server.succeed(RequestCode.UNLOCK_BATCH_MQ)
        queues = self.client.routes.look_up("T").subscribe_queues
        self.locks = MemberLocks(self.client, "g", self.lost.append)
        self.held = [ProcessQueue(queue, 0, self.tasks.now_s) for queue in queues]

    def _lock(self, command: RemotingCommand) -> RemotingCommand:
        found = LockBatchRequest.decode(command.body)
        assert (found.client_id, found.consumer_group) == (self.client.id, "g")
        ours = [queue for queue in found.mq_set if queue.queue_id in self.granted]
        return command.answer(body=LockBatchResponse(ours).encode())

    def valid(self) -> list[bool]:
        return [each.lock_is_valid(30_000) for each in self.held]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with FakeServer() as namesrv, FakeServer() as server:
        made = Bench(namesrv, server)
        yield made
        made.client.remoting.close()


def test_a_lock_is_granted_or_not(bench: Bench) -> None:
    bench.granted = {1}
    assert [bench.client.run(bench.locks.lock(each.queue)) for each in bench.held] == [False, True]


def test_a_renewal_keeps_locks_fresh(bench: Bench) -> None:
    for each in bench.held:
        each.set_locked(True)
    for _ in range(5):
        bench.tasks.advance(20_000)
        assert bench.client.run(bench.locks.renew(bench.held))
    assert bench.valid() == [True, True]
    bench.tasks.advance(30_001)
    assert bench.valid() == [False, False]


def test_a_lock_taken_by_another_member_is_lost(bench: Bench) -> None:
    for each in bench.held:
        each.set_locked(True)
    bench.granted = {0}
    assert not bench.client.run(bench.locks.renew(bench.held))
    assert (bench.valid(), bench.lost) == ([True, False], [bench.held[1]])


def test_an_expired_lock_counts_as_lost_even_if_granted_again(
    bench: Bench,
) -> None:
    """Another member may have had the queue meanwhile."""
    for each in bench.held:
        each.set_locked(True)
    bench.tasks.advance(59_000)
    bench.client.run(bench.locks.renew(bench.held[:1]))
    bench.tasks.advance(2000)
    bench.client.run(bench.locks.renew(bench.held))
    assert (bench.valid(), bench.lost) == ([True, False], [bench.held[1]])


def test_a_silent_broker_changes_no_lock(bench: Bench) -> None:
    for each in bench.held:
        each.set_locked(True)
    bench.server.close()
    assert not bench.client.run(bench.locks.renew(bench.held))
    assert (bench.valid(), bench.lost) == ([True, True], [])
    with pytest.raises(ClientError):
        bench.client.run(bench.locks.lock(bench.held[0].queue))
    bench.client.run(bench.locks.unlock([bench.held[0].queue], oneway=False))  # raises nothing


@pytest.mark.parametrize("oneway", [False, True])
def test_queues_are_unlocked_at_their_broker(bench: Bench, oneway: bool) -> None:
    bench.client.run(bench.locks.unlock([each.queue for each in bench.held], oneway=oneway))
    command = bench.server.next(RequestCode.UNLOCK_BATCH_MQ)
    assert command.is_oneway is oneway
    assert LockBatchRequest.decode(command.body).mq_set == [
        MessageQueue("T", "b", 0),
        MessageQueue("T", "b", 1),
    ]


def test_a_lost_queue_is_not_renewed_though_its_listener_runs(bench: Bench) -> None:
    for each in bench.held:
        each.set_locked(True)
        each.begin()
        each.drop()
    bench.held[0].set_locked(False)
    assert bench.client.run(bench.locks.renew(bench.held))
    command = bench.server.next(RequestCode.LOCK_BATCH_MQ)
    assert [each.queue_id for each in LockBatchRequest.decode(command.body).mq_set] == [1]


def test_a_dropped_queue_is_not_renewed(bench: Bench) -> None:
    bench.held[0].drop()
    bench.held[1].set_locked(True)
    assert bench.client.run(bench.locks.renew(bench.held))
    command = bench.server.next(RequestCode.LOCK_BATCH_MQ)
    assert [each.queue_id for each in LockBatchRequest.decode(command.body).mq_set] == [1]
    assert bench.held[0].queue == message.MessageQueue("T", "b", 0)


def test_all_brokers_are_asked_at_once(bench: Bench) -> None:
    """One after the other, a silent one took a second of the leases of the next ones' queues.

    A queue that was released meanwhile was locked again, so that no other member got it.
    """
    bench.client.routes._addresses["a"] = {0: "127.0.0.1:1"}
    queues = [message.MessageQueue("T", name, 0) for name in ("a", "b")]
    renewal = bench.locks.renew([ProcessQueue(queue, 0) for queue in queues])
    unlocking = bench.locks.unlock(queues, oneway=False)
    expected = ["127.0.0.1:1", bench.server.address]
    for flow in (renewal, unlocking):
        asked = cast(Calls, next(flow))
        assert [each.address for each in asked.calls] == expected
        flow.close()


def test_renewals_ask_a_broker_that_does_not_answer_once_in_a_while(bench: Bench) -> None:
    """Each of its waiting queues took a second of those that a healthy broker's queues need."""
    for held in bench.held:
        renewal = bench.locks.renew([held])
        asked = cast(Calls, next(renewal))
        assert len(asked.calls) == (held is bench.held[0])
        with pytest.raises(StopIteration) as done:
            renewal.send([RequestTimeout("b")] * len(asked.calls))
        assert not done.value.value


def test_after_a_lost_connection_queues_of_other_members_wait_and_own_ones_do_not(
    bench: Bench,
) -> None:
    own, others = (each.queue for each in bench.held)
    bench.locks.connection_lost("127.0.0.1:1", [own])  # of no master
    assert bench.locks.wait_ms(others, 30_000) == 0
    bench.locks.connection_lost(bench.server.address, [own])
    assert bench.locks.wait_ms(own, 30_000) == 0
    assert 0 < bench.locks.wait_ms(others, 30_000) <= 30_000
    assert bench.locks.wait_ms(others, 0) == 0


def test_own_locks_are_renewed_once_after_a_lost_connection(bench: Bench) -> None:
    held = bench.held[:1]
    held[0].set_locked(True)
    bench.locks.connection_lost(bench.server.address, [held[0].queue])
    renewal = bench.locks.renew_forgotten(held)
    assert len(cast(Calls, next(renewal)).calls) == 1
    with pytest.raises(StopIteration):
        renewal.send([RequestTimeout("b")])
    bench.locks._silent_until_s.clear()
    bench.client.run(bench.locks.renew_forgotten(held))
    bench.server.next(RequestCode.LOCK_BATCH_MQ)
    assert list(bench.locks.renew_forgotten(held)) == []
