"""Timers: delivered when they are due, never earlier, whatever level they wait in."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.frame import RemotingCommand
from protocol.message import MessageRecord
from protocol.properties import pairs_of
from protocol.timers import RecallHandle, due_of
from storage.config import StoreConfig
from tests.support.brokers import STORE, SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk

YEAR_MS = 365 * 86_400_000
LEVELS = replace(STORE, message_delay_level="1s 5s 20s 1m")
WAITING = "SCHEDULE_TOPIC_XXXX"
ILLEGAL = (
    "timer message illegal, the delay time should not be bigger than the max delay {}ms; or if set"
    " del msg, the delay time should be bigger than the current time"
)


def broker(store: StoreConfig = LEVELS, **changed: Any) -> SimulatedBroker:
    made = SimulatedBroker(1, store_config=replace(store, **changed))
    made.make_topic()
    return made


def timed(made: SimulatedBroker, body: bytes, delay_ms: int, **options: Any) -> RemotingCommand:
    answer = made.send(body, properties=f"TIMER_DELAY_MS\x01{delay_ms}", **options)
    assert answer.code == 0, answer.remark
    return answer


def bodies(made: SimulatedBroker, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in made.messages(queue_id=queue_id)]


def waiting(made: SimulatedBroker) -> list[MessageRecord]:
    return [record for record in made.records() if record.topic == WAITING]


def restarted(made: SimulatedBroker) -> None:
    made.start_ms = made.clock.now_ms()
    made.start()


@pytest.mark.parametrize("delay_ms", [1, 300, 999, 1000, 1001, 4_321, 20_000, 59_999])
def test_timer_is_delivered_at_its_time_and_never_earlier(delay_ms: int) -> None:
    made = broker()
    timed(made, b"timer", delay_ms)
    began_ms = made.clock.now_ms()
    made.system.run_until(lambda: len(made.records()) > 1)
    (_, came) = made.records()
    (wait,) = waiting(made)
    assert due_of(wait.properties) <= came.store_timestamp <= due_of(wait.properties) + 50
    assert made.clock.now_ms() - began_ms <= delay_ms + 50
    assert bodies(made) == [b"timer"]
    made.system.advance(130_000)
    assert bodies(made) == [b"timer"]


def test_timer_beyond_the_longest_level_moves_and_is_delivered_once_at_its_time() -> None:
    made = broker()
    timed(made, b"late", 200_500)
    made.system.advance(200_000)
    assert bodies(made) == []
    made.system.advance(700)
    assert bodies(made) == [b"late"]
    assert len(waiting(made)) == 4  # three whole minutes, and the rest of 20.5 s
    made.system.advance(200_000)
    assert bodies(made) == [b"late"]


def test_delivered_timer_has_its_properties_and_no_delay_level() -> None:
    made = broker()
    answer = made.send(
        b"timer", properties="TIMER_DELAY_SEC\x012\x02KEYS\x01key\x02UNIQ_KEY\x01ID\x02TAGS\x01tag"
    )
    assert answer.code == 0
    made.system.advance(3_000)
    (record,) = made.messages()
    pairs = pairs_of(record.properties)
    assert b"DELAY" not in pairs
    assert (pairs[b"KEYS"], pairs[b"TAGS"], pairs[b"TIMER_DELAY_SEC"]) == (b"key", b"tag", b"2")
    assert (pairs[b"REAL_TOPIC"], pairs[b"REAL_QID"]) == (b"Topic", b"0")
    due_ms = int(pairs[b"TIMER_OUT_MS"])
    assert due_ms <= record.store_timestamp < due_ms + 50
    assert len(made.pull(expression="tag").body or b"") > 0


def test_timers_and_messages_of_a_level_do_not_hold_each_other_up() -> None:
    made = broker()
    assert made.send(b"level", properties="DELAY\x013").code == 0
    timed(made, b"timer 19", 19_000)
    timed(made, b"timer 6", 6_000)
    made.system.advance(7_000)
    assert bodies(made) == [b"timer 6"]
    made.system.advance(12_200)
    assert bodies(made) == [b"timer 6", b"timer 19"]
    made.system.advance(2_000)
    assert bodies(made) == [b"timer 6", b"timer 19", b"level"]
    made.system.advance(60_000)
    assert len(bodies(made)) == 3


def test_restart_delivers_what_waits_and_nothing_twice() -> None:
    made = broker()
    for delay_ms in (19_000, 3_000, 15_000, 200_000):
        timed(made, b"%d" % delay_ms, delay_ms)
    made.system.advance(16_000)
    made.stop()
    restarted(made)
    made.system.advance(2_500)
    assert bodies(made) == [b"3000", b"15000"]
    made.system.advance(600)
    assert bodies(made) == [b"3000", b"15000", b"19000"]
    made.stop()
    restarted(made)
    made.system.advance(200_000)
    assert bodies(made) == [b"3000", b"15000", b"19000", b"200000"]


def test_level_whose_messages_are_lost_delivers_new_ones_behind_its_timers() -> None:
    """Queue offsets of timers delivered out of turn are not given to messages again."""
    made = broker()
    assert made.send(b"lost", properties="DELAY\x013").code == 0
    for delay_ms in (6_000, 7_000):
        timed(made, b"timer", delay_ms)
    made.system.advance(9_000)
    made.stop()
    for name in made.disk.listdir("/store"):
        if name != "config":
            made.disk.remove_tree(f"/store/{name}")
    restarted(made)
    new = [b"1", b"2", b"3"]
    for body in new:
        assert made.send(body, properties="DELAY\x013").code == 0
    made.system.advance(21_000)
    assert bodies(made) == new


@pytest.mark.parametrize("levels", ["1s 5s 20s", "1s 5s 20s 10s", "1s 5s 20s 2m"])
def test_timer_of_a_level_with_a_changed_delay_is_delivered_at_its_time(levels: str) -> None:
    """The timer came at its turn, which was that of the earlier delay: up to a minute late."""
    made = broker()
    timed(made, b"timer", 40_000)
    end_ms = due_of(waiting(made)[0].properties)
    made.stop()
    made.store_config = replace(LEVELS, message_delay_level=levels)
    restarted(made)
    made.system.advance(39_900)
    assert bodies(made) == []
    made.system.advance(end_ms - made.clock.now_ms() + 100)
    assert bodies(made) == [b"timer"]


@pytest.mark.parametrize(
    "properties",
    [
        "TIMER_DELAY_SEC\x012\x02TIMER_DELAY_MS\x0150000\x02TIMER_DELIVER_MS\x011",
        "TIMER_DELAY_MS\x012000\x02TIMER_DELIVER_MS\x01abc",
        "TIMER_DELIVER_MS\x011700000002000",
    ],
)
def test_properties_have_the_precedence_of_5x(properties: str) -> None:
    made = broker()
    assert made.send(b"timer", properties=properties).code == 0
    (record,) = waiting(made)
    assert 2_000 <= due_of(record.properties) - 1_700_000_000_000 <= 2_100


@pytest.mark.parametrize(
    "properties",
    [
        "TIMER_DELIVER_MS\x011700000000000",  # due already
        "TIMER_DELAY_MS\x010",
        "TIMER_DELAY_SEC\x01-5",
        "TIMER_OUT_MS\x011700000009000\x02TIMER_DELAY_MS\x015000",
    ],
)
def test_message_that_is_no_timer_is_delivered_at_once(properties: str) -> None:
    made = broker()
    made.system.advance(1)
    assert made.send(b"now", properties=properties).code == 0
    assert bodies(made) == [b"now"]


def test_delay_level_takes_precedence_and_removes_the_timer() -> None:
    made = broker()
    for _ in range(2):
        assert made.send(b"", properties="TIMER_DELAY_MS\x0115000\x02DELAY\x012").code == 0
    made.system.advance(6_000)
    assert [b"TIMER" in each.properties for each in made.messages()] == [False, False]


@pytest.mark.parametrize("value", ["abc", "", "259200001", "1e3", "9223372036854775807", "9" * 30])
def test_impossible_timer_is_refused_with_the_text_of_5x(value: str) -> None:
    made = broker()
    answer = made.send(properties=f"TIMER_DELAY_MS\x01{value}\x02A\x01b")
    if not value:  # an empty value is no property
        assert answer.code == 0
        return
    assert (answer.code, answer.remark) == (1, ILLEGAL.format(259_200_000))
    assert made.records() == []


def test_timers_can_be_disabled_and_limited_to_a_year() -> None:
    made = broker(timer_max_delay_sec=366 * 86_400)
    timed(made, b"year", YEAR_MS)
    object.__setattr__(made.broker.store.config, "timer_wheel_enable", False)
    answer = made.send(properties="TIMER_DELAY_MS\x011000")
    assert (answer.code, answer.remark) == (
        1,
        "accurate timer message is not enabled, timerWheelEnable is false",
    )


def test_timer_of_a_year_is_delivered_at_its_time() -> None:
    levels, max_sec, kept_hours = "1s 1m 20d", 366 * 86_400, 24 * 24
    made = broker(
        message_delay_level=levels, timer_max_delay_sec=max_sec, file_reserved_hours=kept_hours
    )
    timed(made, b"year", YEAR_MS)
    end_ms = due_of(waiting(made)[0].properties)
    while (left_ms := end_ms - made.clock.now_ms()) > 30_000:
        made.clock.set_wall(made.clock.now_ms() + min(86_400_000, left_ms - 20_000))
        made.system.advance(1_100)
        assert bodies(made) == []
    assert len(waiting(made)) > 18
    made.system.advance(end_ms - made.clock.now_ms() - 100)
    assert bodies(made) == []
    made.system.advance(200)
    assert bodies(made) == [b"year"]


def test_answer_to_a_timer_has_a_recall_handle_and_no_other_answer_has_one() -> None:
    made = broker()
    sent = made.send(properties="TIMER_DELAY_MS\x015000\x02UNIQ_KEY\x01ID")
    handle = RecallHandle.decode((sent.fields or {})["recallHandle"])
    assert handle == ("Topic", "broker-a", due_of(waiting(made)[0].properties), "ID")
    for properties in ("UNIQ_KEY\x01ID", "UNIQ_KEY\x01ID\x02DELAY\x011"):
        assert "recallHandle" not in (made.send(properties=properties).fields or {})


def test_spoofed_mark_makes_no_timer() -> None:
    """A sender can write the broker's own property, but not at the end of a delayed message."""
    made = broker()
    mark = "TIMER_OUT_MS\x01001800000000000"
    for text in (
        f"DELAY\x012\x02{mark}",
        f"REAL_TOPIC\x01x\x02REAL_QID\x011\x02DELAY\x012\x02{mark}",
        f"CLUSTER\x01c\x02REAL_QID\x011\x02REAL_TOPIC\x01x\x02DELAY\x012\x02{mark}",
    ):
        assert made.send(b"level", properties=text).code == 0
    made.system.advance(6_000)
    assert bodies(made) == [b"level"] * 3


@pytest.mark.parametrize("step_ms", [2_000, 300_000, YEAR_MS])
def test_timer_waits_for_its_time_when_the_clock_is_set_back(step_ms: int) -> None:
    made = broker()
    timed(made, b"timer", 15_000)
    (wait,) = waiting(made)
    made.clock.set_wall(made.clock.now_ms() - step_ms)
    made.system.advance(min(step_ms, 400_000) + 14_900)
    assert bodies(made) == []
    made.clock.set_wall(due_of(wait.properties) - 1_500)
    made.system.advance(1_400)
    assert bodies(made) == []
    made.system.advance(1_000)
    assert bodies(made) == [b"timer"]


def test_timer_is_delivered_when_the_clock_is_set_forward() -> None:
    made = broker()
    timed(made, b"timer", 50_000)
    timed(made, b"far", 500_000)
    made.clock.set_wall(made.clock.now_ms() + 100_000)
    made.system.advance(1_100)
    assert bodies(made) == [b"timer"]
    made.clock.set_wall(made.clock.now_ms() + YEAR_MS)
    made.system.advance(61_000)
    assert bodies(made) == [b"timer", b"far"]


@pytest.mark.parametrize("seed", [1, 150])
def test_kill_does_not_repeat_the_first_timer_of_a_store(seed: int) -> None:
    """With seed 150 it is stored before its level has begun: no start looked for its copy."""
    levels = replace(STORE, message_delay_level="1s 3s 9s", flush_disk_type="SYNC_FLUSH")
    made = SimulatedBroker(seed, store_config=levels)
    made.make_topic()
    made.start_send(b"x", properties="TIMER_DELAY_MS\x01669")
    made.system.advance(1_500)
    made.crash()
    assert isinstance(made.disk, FakeDisk)
    made.disk = made.disk.killed()
    made.start()
    made.system.advance(3_000)
    assert len([each for each in made.records() if each.topic == "Topic"]) == 1
