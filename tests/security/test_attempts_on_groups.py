"""Attempts with what a broker keeps of groups: offsets and locks by the ten thousand (A18)."""

from dataclasses import replace
from time import thread_time

import pytest
from structlog.testing import capture_logs

from actors.consumers import queue_locks
from actors.consumers.consumer_groups import Consumers
from actors.consumers.group_changes import NOTICES_PER_ROUND, GroupNotices
from actors.consumers.queue_locks import REQUEST_QUEUES_MAX
from actors.tables import consumer_offsets
from protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueue
from protocol.codes import PULL_COMMIT_OFFSET, ResponseCode
from protocol.codes import RequestCode as Code
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.headers.client import UpdateConsumerOffsetHeader
from tests.support.brokers import BROKER, SimulatedBroker, pull_command
from tests.support.told import times


def commit(group: str, topic: str = "Topic", queue_id: int = 0) -> RemotingCommand:
    header = UpdateConsumerOffsetHeader(group, topic, queue_id, 0)
    return RemotingCommand(Code.UPDATE_CONSUMER_OFFSET, header.encode())


def oneway(made: SimulatedBroker, *commands: RemotingCommand) -> None:
    for command in commands:
        made.client.start(replace(command, flag=ONEWAY_FLAG))
    made.system.drain()


def test_a18_offsets_of_unknown_groups_topics_and_queues_are_limited() -> None:
    made = SimulatedBroker(1, config=replace(BROKER, auto_groups_max=20))
    made.make_topic()
    made.make_group()
    offsets = made.broker.tables.live_offsets
    with capture_logs() as logs:
        oneway(made, *(commit(f"made-up-{n}") for n in range(10)))
        oneway(made, *(commit("consumers", f"made-up-{n}") for n in range(5)))
        oneway(made, *(commit("consumers", queue_id=1000 + n) for n in range(100)))
        assert sum(map(len, offsets.value.values())) == 20
        answer = made.ask(commit("one-more"))
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "one-more" in (answer.remark or "") and "maxAutoGroups" in (answer.remark or "")
        assert made.ask(commit("consumers", "another")).code == ResponseCode.TOPIC_NOT_EXIST
        assert times(logs, "offset not kept: maxAutoGroups") == [1]
        made.system.advance(60_000)
    assert times(logs, "offset not kept: maxAutoGroups") == [1, 96]
    assert made.ask(commit("consumers")).code == 0, "what is there goes on"
    assert made.ask(commit("made-up-1")).code == 0, "what is kept is moved"
    made.make_group("others")
    made.ask(pull_command(consumer_group="others", sys_flag=PULL_COMMIT_OFFSET))
    made.system.drain()
    assert offsets.value["Topic@others"] == {0: 0}
    for name in (f"made-up-{n}" for n in range(5)):
        made.make_group(name)
    made.system.advance(10_000)
    assert made.ask(commit("one-more")).code == 0, "five of them are known now"


def test_a18_a_save_copies_only_the_offsets_that_have_changed() -> None:
    """Copying all 20,000 groups with four queues took 6 to 40 ms."""
    made = SimulatedBroker(1)
    made.make_topic()
    oneway(made, *(commit(f"group-{n}") for n in range(3)))
    made.system.advance(6000)
    before = made.broker.tables.offsets.value
    oneway(made, commit("group-1"), commit("group-3"))
    made.system.advance(6000)
    after = made.broker.tables.offsets.value
    same = {key for key in before if after[key] is before[key]}
    assert same == {"Topic@group-0", "Topic@group-2"}
    assert len(before) == 3 and len(after) == 4


def test_a18_many_changed_offsets_are_copied_before_the_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A save that copied 100,000 changed keys took 56 ms."""
    monkeypatch.setattr(consumer_offsets, "UNPUBLISHED_MAX", 10)
    made = SimulatedBroker(1)
    made.make_topic()
    oneway(made, *(commit(f"group-{n}") for n in range(15)))
    assert len(made.broker.tables.offsets.value) == 10
    made.system.advance(6000)
    assert len(made.broker.tables.offsets.value) == 15


def locking(count: int, group: str = "consumers", topic: str = "Topic") -> RemotingCommand:
    queues = [MessageQueue(topic, "broker-a", number) for number in range(count)]
    body = LockBatchRequest("client", group, queues).encode()
    return RemotingCommand(Code.LOCK_BATCH_MQ, body=body)


def locked(answer: RemotingCommand) -> int:
    return len(LockBatchResponse.decode(answer.body).lock_ok_mq_set)


def test_a18_the_queues_of_a_lock_request_are_limited_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = SimulatedBroker(1)
    assert locked(made.ask(locking(REQUEST_QUEUES_MAX))) == REQUEST_QUEUES_MAX
    too_many = locking(REQUEST_QUEUES_MAX + 1)
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(LockBatchRequest, "decode", None)
        for code in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ):
            answer = made.ask(replace(too_many, code=code))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == "a request locks or unlocks at most 4096 queues"
    assert times(logs, "queue lock request rejected: too many queues") == [1]


def test_a18_the_total_number_of_locked_queues_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_locks, "LOCKS_MAX", 100)
    made = SimulatedBroker(1)
    with capture_logs() as logs:
        counts = [locked(made.ask(locking(8, f"made-up-{n}"))) for n in range(20)]
    assert sum(counts) == 100
    assert times(logs, "queue lock limit reached") == [1]
    assert locked(made.ask(locking(8, "made-up-1"))) == 8, "who holds some renews them"
    made.system.advance(queue_locks.LOCK_LIVES_MS + 20_000)
    assert locked(made.ask(locking(8))) == 8


@pytest.mark.parametrize("where", ["group", "topic"])
def test_a18_a_lock_stores_no_long_names(where: str) -> None:
    made = SimulatedBroker(1)
    answer = made.ask(locking(1, **{where: "x" * 2000}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "queue lock names have at most 1024 characters"


@pytest.mark.heavy
def test_a18_groups_that_are_gone_before_their_turn_count_for_the_round() -> None:
    """Notices and comparisons of 60,000 such groups took a second in one round."""
    names, groups = [f"group-{number}" for number in range(60_000)], Consumers()
    notices = GroupNotices(groups.groups)
    groups._uncompared.update(dict.fromkeys(names))
    began_s, rounds = thread_time(), 0
    notices.send(names)
    while notices.is_used or groups.is_used:
        rounds += 1
        assert groups.compare_more() == []
        notices.begin_round()
        groups.begin_round()
        notices.send()
    assert thread_time() - began_s < 0.8
    assert rounds >= len(names) // NOTICES_PER_ROUND
