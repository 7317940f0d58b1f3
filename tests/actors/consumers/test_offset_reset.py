"""Offset resets: new offsets, commands to members, and stale commits that undo none."""

import pytest

from actors.consumers import offset_reset
from actors.engine.actor_address import ActorAddress
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.tables import offset_changes
from protocol.bodies import MessageQueue
from protocol.bodies_client import ResetOffsetBody, ResetOffsetList
from protocol.codes import LanguageCode, RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from tests.support.brokers import SimulatedBroker
from tests.support.groups import Client, ask, update
from tests.support.pulls import broker

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
TOLD = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
START_MS = 1_700_000_000_000
QUEUES = 2


def filled(committed: int = 5) -> SimulatedBroker:
    """A topic of two queues, ten messages in each a second apart, half of them consumed."""
    made = broker()
    made.make_topic(queues=QUEUES)
    for _ in range(10):
        for queue_id in range(QUEUES):
            made.send(queue_id=queue_id)
        made.system.advance(1000)
    for queue_id in range(QUEUES):
        made.ask(update("consumers", committed, queue_id))
    return made


def stored_ms(made: SimulatedBroker, offset: int) -> int:
    return made.messages()[offset].store_timestamp


def reset(
    made: SimulatedBroker, timestamp: int, *, force: bool = True, **more: str
) -> RemotingCommand:
    fields = {"topic": "Topic", "group": "consumers", **more}
    return ask(made, RESET, **fields, timestamp=timestamp, isForce=str(force).lower())


def by_queue(table: dict[MessageQueue, int]) -> dict[int, int]:
    assert {(queue.topic, queue.broker_name) for queue in table} <= {("Topic", "broker-a")}
    return {queue.queue_id: offset for queue, offset in table.items()}


def goals(answer: RemotingCommand) -> dict[int, int]:
    assert (answer.code, answer.remark) == (0, "not set any response code")
    return by_queue(ResetOffsetBody.decode(answer.body).offset_table)


def offsets(made: SimulatedBroker, group: str = "consumers") -> list[int]:
    found = []
    for queue_id in range(QUEUES):
        fields = {"consumerGroup": group, "topic": "Topic", "queueId": str(queue_id)}
        answer = made.ask(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields))
        found.append(int((answer.fields or {})["offset"]))
    return found


def test_a_queue_that_is_read_and_no_longer_written_is_reset_too() -> None:
    made = filled()
    made.make_topic(queues=1, read_queues=QUEUES)
    Client(made, "c1", 1001)
    assert goals(reset(made, stored_ms(made, 3))) == {0: 3, 1: 3}
    assert offsets(made) == [3, 3]


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("goal", [0, 3, 8, 10])
def test_members_get_the_offsets_of_a_time_reset(goal: int, force: bool) -> None:
    made = filled()
    one, other = Client(made, "c1", 1001), Client(made, "c2", 1002)
    timestamp = -1 if goal == 10 else stored_ms(made, goal)
    wanted = goal if force or goal < 5 else 5
    answer = reset(made, timestamp, force=force)
    assert goals(answer) == {0: wanted, 1: wanted}
    for member in (one, other):
        (told,) = member.asked(TOLD)
        assert told.is_oneway
        assert told.fields == {
            "topic": "Topic",
            "group": "consumers",
            "timestamp": str(timestamp),
            "isForce": "false",  # 4.9.7 does not pass it on
        }
        assert by_queue(ResetOffsetBody.decode(told.body).offset_table) == goals(answer)
    assert offsets(made) == [wanted, wanted]


def test_cpp_clients_get_the_reset_as_a_list() -> None:
    made = filled()
    member = Client(made, "c1", 1001)
    fields = {"topic": "Topic", "group": "consumers", "timestamp": "-1", "isForce": "true"}
    command = RemotingCommand(RESET, fields, language=LanguageCode.CPP)
    assert goals(made.ask(command)) == {0: 10, 1: 10}
    (told,) = member.asked(TOLD)
    listed = ResetOffsetList.decode(told.body).offset_table
    assert sorted((each.topic, each.queue_id, each.offset) for each in listed) == [
        ("Topic", 0, 10),
        ("Topic", 1, 10),
    ]


def test_an_invalid_reset_is_refused_and_changes_nothing() -> None:
    made = filled()
    answer = reset(made, 0, topic="Nobody")
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "[reset-offset] reset offset failed, no topic in this broker. topic=Nobody",
    )
    answer = reset(made, 0, group="never")
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "THe consumer group <never> not exist",
    )
    answer = reset(made, 7)
    assert (answer.code, answer.remark) == (
        ResponseCode.CONSUMER_NOT_ONLINE,
        "Consumer not online, so can not reset offset, Group: consumers Topic: Topic Timestamp: 7",
    )
    new, _ = Client(made, "new", 1001), Client(made, "old", 1002, version=27)
    answer = reset(made, 0)
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "the client does not support this feature. version=V3_0_6",
    )
    assert new.asked(TOLD) == []
    assert offsets(made) == [5, 5]


def test_one_queue_without_an_offset_refuses_the_reset() -> None:
    made = broker()
    made.make_topic(queues=QUEUES)
    made.ask(update("consumers", 1, 0))
    Client(made, "c1", 1001)
    assert reset(made, -1).remark == "THe consumer group <consumers> not exist"


@pytest.mark.parametrize("goal", [2, 8])
def test_an_earlier_member_cannot_undo_a_reset_and_can_commit_later(goal: int) -> None:
    """A Java client commits its old offsets for ten seconds, then the new ones."""
    made = filled()
    member = Client(made, "c1", 1001)
    made.system.advance(1000)
    assert goals(reset(made, stored_ms(made, goal))) == {0: goal, 1: goal}
    for _ in range(2):
        for queue_id in range(QUEUES):
            member.commit(6, queue_id)
        assert offsets(made) == [goal, goal]
        made.system.advance(5000)
    for queue_id in range(QUEUES):
        member.commit(goal, queue_id)
    assert offsets(made) == [goal, goal]
    member.commit(goal + 1)
    assert offsets(made) == [goal + 1, goal]
    assert made.broker.offset_stats.ignored_count == 2 * QUEUES


def test_a_member_that_stops_before_it_moved_does_not_undo_a_reset() -> None:
    made = filled()
    member = Client(made, "c1", 1001)
    made.system.advance(1000)
    reset(made, stored_ms(made, 2))
    member.commit(6)
    member.sign_off()
    member.close()
    made.system.advance(1)
    follower = Client(made, "c2", 1002)
    assert offsets(made) == [2, 2]
    follower.commit(3)
    assert offsets(made) == [3, 2]
    made.crash()
    made.start()
    assert offsets(made) == [2, 2], "a reset is on the disk at once"


def test_offline_mqadmin_sets_the_offsets_itself() -> None:
    """After 206, resetOffsetByTime reads consume stats and offsets by time, then commits."""
    made = filled()
    for queue_id in range(QUEUES):
        assert made.ask(update("consumers", 2, queue_id)).code == 0
    made.system.advance(1)
    late = Client(made, "c1", 1001)
    assert offsets(made) == [2, 2]
    late.commit(4)
    assert offsets(made) == [4, 2]


def test_many_members_get_a_reset_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 members kept the loop from all other clients for 0.15 s."""
    monkeypatch.setattr(offset_reset, "NOTICED_AT_ONCE", 2)
    made = filled()
    members = [Client(made, f"c{number}", 1001 + number) for number in range(5)]
    later: list[object] = []
    tell = made.system.loop.tell_in_next_round

    def note(address: ActorAddress, message: object) -> None:
        if type(message).__name__ == "_Notices":
            later.append(message)
        tell(address, message)

    monkeypatch.setattr(made.system.loop, "tell_in_next_round", note)
    reset(made, -1)
    made.system.drain()
    for each in members:
        assert [told.code for told in each.peer.received].count(TOLD) == 1
    assert len(later) == 3
    fields = {"topic": "Topic", "group": "consumers", "timestamp": "-1", "isForce": "true"}
    for _ in range(2):
        made.client.start(RemotingCommand(RESET, fields), lambda _: None)
    made.system.drain()
    assert len(later) == 3 + 3 + 1 + 3, "one after the other"
    for each in members:
        assert [told.code for told in each.peer.received].count(TOLD) == 3


def test_others_have_their_turn_during_a_reset_of_many_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reset of 65,536 queues kept the loop from all other clients for 0.7 s."""
    monkeypatch.setattr(offset_changes, "CHANGED_PER_ROUND", 100)
    count = ENCODED_HERE_MAX + 1
    made = broker()
    made.make_topic(queues=count)
    for queue_id in range(count):
        made.client.start(update("consumers", 5, queue_id), lambda _: None)
    made.system.drain()
    members = [Client(made, f"c{number}", 1001 + number) for number in range(3)]
    later: list[tuple[str, str]] = []
    tell = made.system.loop.tell_in_next_round

    def note(address: ActorAddress, message: object) -> None:
        later.append((address.name, type(message).__name__))
        tell(address, message)

    monkeypatch.setattr(made.system.loop, "tell_in_next_round", note)
    answer = reset(made, -1)
    made.system.drain()
    assert goals(answer) == dict.fromkeys(range(count), 0)
    assert offsets(made) == [0, 0]
    for member in members:
        (told,) = [each for each in member.peer.received if each.code == TOLD]
        assert ResetOffsetBody.decode(told.body) == ResetOffsetBody.decode(answer.body)
    handled = {each.name: each.handled_count for each in made.system.figures()}
    assert handled["long_answers"] == 1, "encoded on a thread"
    assert later.count(("consumer_offsets", "ChangeOn")) == count // 100
    assert later.count(("offset_reset", "_Notices")) == len(members)
    assert goals(reset(made, -1)) == dict.fromkeys(range(count), 0), "the next one has its turn"
