"""Long polling: which pulls are held, which events wake them, and that each is answered."""

from random import Random

import pytest

from actors.dispatching.messages import QueuesEmptied
from actors.pulling import held_pulls, pull_hold
from actors.pulling.held_pulls import TICK_MS, HoldTable
from actors.pulling.messages import Hold
from actors.pulling.pull_hold import PullHold
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from protocol.tags import java_hash_code
from tests.support import golden
from tests.support.brokers import SimulatedBroker, pull_command, send_command
from tests.support.pulls import (
    as_recorded,
    broker,
    code_and_bodies,
    committed,
    fill,
    outcome,
    recorded,
    tagged,
)

HOLD_MS = 15_000


def start_pull(made: SimulatedBroker, offset: int = 0, **options: object) -> list[RemotingCommand]:
    """Pulls; the list gets the answer, once there is one."""
    answers: list[RemotingCommand] = []
    command = pull_command(offset, **{"hold_ms": HOLD_MS, **options})  # type: ignore[arg-type]
    made.client.start(command, answers.append)
    made.system.drain()
    return answers


def now_ms(made: SimulatedBroker) -> float:
    return made.system.clock.monotonic_ms()


# --- waiting


def test_a_pull_that_finds_nothing_waits_for_the_next_message() -> None:
    made = broker(2)
    answers = start_pull(made, 2)
    made.system.advance(HOLD_MS / 2)
    assert answers == []
    started_ms = now_ms(made)
    fill(made, 1, b"at last")
    assert now_ms(made) == started_ms, "it must not wait for a tick"
    (record,) = outcome(answers[0], 0, "FOUND", 3, 0, 3)
    assert record.body == b"at last"
    assert made.broker.pull_stats.held_count == 1


def test_a_pull_of_an_empty_queue_waits_for_its_first_message() -> None:
    made = broker()
    answers = start_pull(made, queue_id=3)
    fill(made, 1, b"first", queue_id=3)
    assert code_and_bodies(answers[0]) == (0, [b"first"])


@pytest.mark.parametrize("hold_ms", [1, 1_000, 15_000, 30_000])
def test_a_pull_is_answered_within_a_tick_of_its_deadline(hold_ms: int) -> None:
    made = broker(1)
    answers = start_pull(made, 1, hold_ms=hold_ms)
    made.system.advance(hold_ms - 1)
    assert answers == []
    made.system.advance(TICK_MS + 1)
    outcome(answers[0], 19, "OFFSET_OVERFLOW_ONE", 1, 0, 1)


def test_without_long_polling_a_pull_is_held_for_at_most_a_second() -> None:
    made = broker(1, long_polling_enable=False)
    answers = start_pull(made, 1, hold_ms=30_000)
    made.system.advance(900)
    assert answers == []
    made.system.advance(100 + TICK_MS)
    outcome(answers[0], 19, "OFFSET_OVERFLOW_ONE", 1, 0, 1)


def test_a_pull_that_may_not_be_held_is_answered_at_once() -> None:
    made = broker(1)
    outcome(made.pull(1, suspend_timeout_ms=15_000), 19, "OFFSET_OVERFLOW_ONE", 1, 0, 1)
    assert now_ms(made) < TICK_MS
    assert made.broker.pull_stats.held_count == 0


def test_refused_and_moved_pulls_are_not_held() -> None:
    made = broker(2)
    for options, code in (({"offset": 9}, 21), ({"expression": "None"}, 20), ({"queue_id": 9}, 1)):
        assert [answer.code for answer in start_pull(made, **options)] == [code]


def test_a_held_pull_commits_its_offset_once_at_arrival() -> None:
    made = broker(3)
    answers = start_pull(made, 3, sys_flag=1, commit_offset=2)
    assert committed(made) == 2
    made.client.start(pull_command(0, sys_flag=1, commit_offset=3))
    assert committed(made) == 3
    fill(made, 1)
    assert answers[0].code == ResponseCode.SUCCESS
    assert committed(made) == 3, "woken, it must not commit again"


# --- waking


def test_a_message_in_another_queue_or_topic_wakes_no_pull() -> None:
    made = broker()
    made.make_topic("Other")
    answers = start_pull(made)
    fill(made, 3, queue_id=1)
    fill(made, 3, topic="Other")
    assert answers == []
    fill(made, 1)
    assert len(answers) == 1


def test_one_message_wakes_all_pulls_that_wait_for_it() -> None:
    made = broker()
    all_answers = [start_pull(made) for _ in range(20)]
    fill(made, 1, b"for all")
    assert [code_and_bodies(answer) for (answer,) in all_answers] == [(0, [b"for all"])] * 20


def test_only_a_subscribed_tag_wakes_a_pull() -> None:
    made = broker()
    answers = start_pull(made, expression="TagA || TagB")
    fill(made, 2, b"no", properties=tagged("TagC"))
    fill(made, 1, b"no")
    assert answers == []
    fill(made, 1, b"yes", properties=tagged("TagB"))
    (record,) = outcome(answers[0], 0, "FOUND", 4, 0, 4)
    assert record.body == b"yes"


def test_a_tag_with_the_same_hash_wakes_a_pull() -> None:
    made = broker()
    answers = start_pull(made, expression="AaAa")
    fill(made, 1, b"same hash", properties=tagged("BBBB"))
    assert code_and_bodies(answers[0]) == (0, [b"same hash"])


def test_a_tag_with_a_negative_hash_wakes_a_pull() -> None:
    tag = next(f"Tag{n}" for n in range(100_000, 200_000) if java_hash_code(f"Tag{n}") < 0)
    made = broker()
    answers = start_pull(made, expression=tag)
    fill(made, 1, b"negative", properties=tagged(tag))
    assert code_and_bodies(answers[0]) == (0, [b"negative"])


def test_unwanted_messages_do_not_extend_a_held_pulls_deadline() -> None:
    made = broker()
    answers = start_pull(made, expression="TagA")
    made.system.advance(HOLD_MS - 1_000)
    fill(made, 4, properties=tagged("TagB"))
    assert answers == []
    made.system.advance(1_000 + TICK_MS)
    outcome(answers[0], 20, "NO_MATCHED_MESSAGE", 4, 0, 4)


def test_a_pull_with_a_heartbeats_subscription_is_held_and_woken() -> None:
    made = broker()
    made.subscribe("TagA")
    answers = start_pull(made, expression=None)
    fill(made, 1, properties=tagged("TagB"))
    assert answers == []
    fill(made, 1, b"wanted", properties=tagged("TagA"))
    assert code_and_bodies(answers[0]) == (0, [b"wanted"])


def test_a_held_pull_is_checked_again_when_it_is_woken() -> None:
    made = broker()
    answers = start_pull(made)
    made.make_group(consume_enable=False)
    fill(made, 1)
    assert [answer.code for answer in answers] == [ResponseCode.NO_PERMISSION]


# --- ends


def test_pulls_of_a_closed_connection_are_dropped() -> None:
    made = broker()
    gone = start_pull(made)
    others: list[RemotingCommand] = []
    made.new_client(2).start(pull_command(hold_ms=HOLD_MS), others.append)
    made.system.drain()
    made.client.close()
    made.system.drain()  # a message may be told of before a peer's end
    fill(made, 1)
    made.system.advance(HOLD_MS * 2)
    assert (len(gone), len(others)) == (0, 1)


def test_many_pulls_past_their_deadline_at_once_are_all_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pull_hold, "TAKEN_PER_ROUND", 3)
    monkeypatch.setattr(pull_hold, "WOKEN_PER_ROUND", 2)
    made = broker(1)
    held = [start_pull(made, 1) for _ in range(11)]
    made.system.advance(HOLD_MS + TICK_MS)
    assert [len(answers) for answers in held] == [1] * 11
    late = start_pull(made, 1)
    made.system.advance(HOLD_MS + TICK_MS)
    assert len(late) == 1


def test_messages_of_many_queues_wake_their_pulls_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """200,000 pulls at twenty queues were woken in one step: 0.6 s."""
    monkeypatch.setattr(pull_hold, "TAKEN_AT_ONCE", 2)
    made = broker()
    held = [start_pull(made, queue_id=number % 4) for number in range(8)]
    taken: list[int] = []
    look = PullHold._look_at_arrived

    def noted(actor: PullHold) -> None:
        before = actor._table.count
        look(actor)
        taken.append(before - actor._table.count)

    monkeypatch.setattr(PullHold, "_look_at_arrived", noted)
    for queue_id in range(4):
        made.start_send(b"news", queue_id=queue_id)
    made.system.drain()
    assert [code_and_bodies(answer) for (answer,) in held] == [(0, [b"news"])] * 8
    assert sum(taken) == 8 and max(taken) == 2


def test_pulls_at_removed_queues_are_answered_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """96,000 at the queues of a deleted topic took 0.17 s in one round."""
    monkeypatch.setattr(pull_hold, "TAKEN_AT_ONCE", 3)
    made, taken = broker(), list[int]()
    answers = [start_pull(made, queue_id=queue_id) for queue_id in (2, 2, 3, 2, 3, 3, 2)]
    take = HoldTable.of_queue

    def of_queue(table: HoldTable, topic: bytes, queue_id: int, most: int) -> list[Hold]:
        found = take(table, topic, queue_id, most)
        taken.append(len(found))
        return found

    monkeypatch.setattr(HoldTable, "of_queue", of_queue)
    made.system.address("pull_hold").tell(QueuesEmptied([("Topic", 2), ("Topic", 3)]))
    made.system.drain()
    assert taken == [3, 1, 2, 1] and not [each for each in answers if each == []]


def test_many_pulls_of_closed_connections_are_all_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pull_hold, "TAKEN_PER_ROUND", 3)
    made = broker(1)
    others = [made.new_client(number) for number in (2, 3)]
    for client in (made.client, *others):
        for _ in range(7):
            client.start(pull_command(1, hold_ms=HOLD_MS), lambda _: pytest.fail("it is gone"))
    made.system.drain()
    before = made.broker.pull_stats.pull_count
    for client in (made.client, *others):
        client.close()
    made.system.drain()
    made.system.advance(HOLD_MS * 2)
    assert made.broker.pull_stats.pull_count == before, "a forgotten pull is looked at no more"


@pytest.mark.trial(short=13, long=1_000)
def test_held_pulls_are_answered_when_the_broker_stops(seed: int) -> None:
    made = broker(1, seed=seed)
    held = [start_pull(made, 1) for _ in range(5)]
    held += [start_pull(made, 0, queue_id=queue_id) for queue_id in (1, 2)]
    made.stop()
    assert [answer.code for (answer,) in held] == [ResponseCode.PULL_NOT_FOUND] * 7
    outcome(held[0][0], 19, "OFFSET_OVERFLOW_ONE", 1, 0, 1)


def test_over_the_limit_of_held_pulls_a_pull_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_pulls, "HELD_MAX", 2)
    made = broker(1)
    answers = [start_pull(made, 1) for _ in range(3)]
    assert [len(each) for each in answers] == [0, 0, 1]
    outcome(answers[2][0], 19, "OFFSET_OVERFLOW_ONE", 1, 0, 1)
    assert made.broker.pull_stats.held_count == 2


def test_held_pulls_are_answered_when_pull_hold_fails() -> None:
    made = broker(1)
    answers = start_pull(made, 1)
    made.system.address("pull_hold").tell("no message of ours")
    made.system.drain()
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR]
    made.system.advance(10_000)
    again = start_pull(made, 1)
    fill(made, 1, b"goes on")
    assert code_and_bodies(again[0]) == (0, [b"goes on"])


@pytest.mark.trial(short=12, long=2_000)
def test_no_message_that_arrives_while_a_pull_is_being_held_is_missed(seed: int) -> None:
    """Pull and messages race each other in every order that threads could take."""
    random = Random(seed)
    made = broker(seed=seed)
    offset = 0
    found: list[bytes] = []

    def pull_until_answered(sends: list[RemotingCommand]) -> RemotingCommand:
        answers: list[RemotingCommand] = []
        pull = pull_command(offset, expression="TagA || TagB", hold_ms=HOLD_MS)
        at = random.randrange(len(sends) + 1)
        for command in [*sends[:at], pull, *sends[at:]]:
            made.client.start(command, answers.append if command is pull else None)
        made.system.run_until(lambda: bool(answers), HOLD_MS)
        return answers[0]

    for round_ in range(10):
        started_ms = now_ms(made)
        wanted = b"%d" % round_
        tags = [*["TagC"] * random.randrange(3), random.choice(("TagA", "TagB"))]
        sends = [send_command(wanted, properties=tagged(tag)) for tag in tags]
        while wanted not in found:
            answer = pull_until_answered(sends)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
            offset = int((answer.fields or {})["nextBeginOffset"])
            found += code_and_bodies(answer)[1]
            sends = []
        assert now_ms(made) - started_ms < HOLD_MS / 2, "it waited for its deadline"
    assert found == [b"%d" % round_ for round_ in range(10)]


# --- recorded from the original


def test_held_pulls_of_the_java_client_end_as_with_the_original() -> None:
    golden.golden_root()
    made = broker()
    made.make_topic("GT_Basic")
    made.make_topic("%RETRY%CG_Push")
    made.subscribe(topic="%RETRY%CG_Push", group="CG_Push", version=1 << 60)
    for pair in (60, 61):
        started_ms = now_ms(made)
        as_recorded(made, "java-4.9.7", pair)
        assert 15_000 <= now_ms(made) - started_ms <= 15_000 + TICK_MS
    fill(made, 5, topic="GT_Basic")
    request, wanted = recorded("java-4.9.7", 117)
    answers: list[RemotingCommand] = []
    made.client.start(request, answers.append)
    made.system.drain()
    assert answers == []
    fill(made, 1, topic="GT_Basic")
    assert (answers[0].code, answers[0].remark) == (wanted.code, wanted.remark)
    assert answers[0].fields == wanted.fields
