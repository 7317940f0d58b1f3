"""Delayed messages while the clock is set, and while delay levels are changed."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from storage.checking.store_check import StoreCheck
from storage.dispatching.dispatch import delay_levels_ms
from tests.actors.delays.test_schedule import OFFSETS, bodies, broker, delayed, saved
from tests.support.brokers import SimulatedBroker

SHORT = "1s 5s 20s 2s 3s 4s 6s"
YEAR_MS = 365 * 86_400_000


def waited_ms(made: SimulatedBroker) -> float:
    """Return the time until one more message is delivered, ms."""
    began_ms, count = made.clock.monotonic_ms(), len(bodies(made))
    made.system.run_until(lambda: len(bodies(made)) > count)
    return made.clock.monotonic_ms() - began_ms


def step(made: SimulatedBroker, ms: int) -> None:
    made.clock.set_wall(made.clock.now_ms() + ms)


def started(made: SimulatedBroker) -> None:
    made.start_ms = made.clock.now_ms()
    made.start()


def restarted(made: SimulatedBroker, levels: str) -> None:
    made.stop()
    made.store_config = replace(made.store_config, message_delay_level=levels)
    started(made)


@pytest.mark.parametrize("step_ms", [2_000, 300_000, YEAR_MS])
def test_message_stored_before_the_clock_steps_back_waits_once_for_its_delay(step_ms: int) -> None:
    made = broker(message_delay_level=SHORT)
    delayed(made, b"late", 3)
    step(made, -step_ms)
    assert 19_900 <= waited_ms(made) <= 22_100


@pytest.mark.parametrize("step_ms", [2_000, 300_000, YEAR_MS])
def test_delay_is_counted_from_the_clock_after_it_was_ahead_for_one_send(step_ms: int) -> None:
    """The stored time of ordinary messages never goes back; a due time is not counted from it."""
    made = broker(message_delay_level=SHORT)
    step(made, step_ms)
    assert made.send(b"ahead", queue_id=1).code == 0
    step(made, -step_ms)
    began_ms = made.clock.now_ms()
    delayed(made, b"late", 3)
    made.system.drain()
    (waiting,) = [each for each in made.records() if each.topic == "SCHEDULE_TOPIC_XXXX"]
    assert began_ms <= waiting.store_timestamp <= began_ms + 1000
    queue = made.broker.store.consume_queues.get(waiting.topic, waiting.queue_id)
    assert queue is not None
    _, _, due_ms = queue.unit(0) or (0, 0, 0)
    assert due_ms == waiting.store_timestamp + 20_000
    assert 19_000 <= waited_ms(made) <= 20_100


def test_queue_rebuilt_from_the_commit_log_has_the_same_due_times() -> None:
    made = broker(message_delay_level=SHORT)
    step(made, 300_000)
    assert made.send(b"ahead", queue_id=1).code == 0
    step(made, -300_000)
    for _ in range(3):
        delayed(made, b"late", 3)
        made.system.advance(1_000)

    def units() -> bytes:
        queue = made.broker.store.consume_queues.get("SCHEDULE_TOPIC_XXXX", 2)
        return b"" if queue is None else bytes(queue.units(0, 10))

    before = units()
    made.stop()
    directory = f"{made.store_config.root}/consumequeue/SCHEDULE_TOPIC_XXXX/2"
    for file in made.disk.listdir(directory):
        made.disk.unlink(f"{directory}/{file}")
    started(made)
    assert len(before) == 60 and units() == before


def test_retries_keep_their_delays_when_the_clock_jumps() -> None:
    """Sixteen of them took 15.5 s and ended in the dead letters."""
    made = broker(message_delay_level=SHORT)
    for level, delay_ms in enumerate(delay_levels_ms(SHORT), 1):
        step(made, 300_000)
        assert made.send(b"ahead", queue_id=1).code == 0
        delayed(made, b"ahead", level)
        step(made, -300_000)
        assert delay_ms - 100 <= waited_ms(made) <= delay_ms + 1100
        delayed(made, b"behind", level)
        assert delay_ms - 100 <= waited_ms(made) <= delay_ms + 1100


def test_a_message_from_a_fast_clock_does_not_delay_later_ones() -> None:
    """One send a year ahead: it is due with the next one, also after a restart."""
    made = broker()
    step(made, YEAR_MS)
    delayed(made, b"ahead", 2)
    step(made, -YEAR_MS)
    made.system.advance(2_000)
    delayed(made, b"next", 2)
    made.system.advance(2_900)
    assert bodies(made) == []
    restarted(made, made.store_config.message_delay_level)
    made.system.advance(1_000)
    assert bodies(made) == []
    made.system.advance(1_300)
    assert bodies(made) == [b"ahead", b"next"]


def test_message_due_too_far_away_is_logged_once() -> None:
    made = broker()
    delayed(made, b"clock", 2)
    step(made, -3_600_000)
    with capture_logs() as logs:
        made.system.advance(4_000)
    told = [each for each in logs if each["event"] == "delayed message due late"]
    assert [(each["level"], each["reason"]) for each in told] == [
        (2, "the clock was set back after it was stored")
    ]


def test_unit_with_an_impossible_due_time_is_repaired_and_waited_for() -> None:
    made = broker()
    delayed(made, b"late", 2)
    made.system.drain()
    queue = made.broker.store.consume_queues.get("SCHEDULE_TOPIC_XXXX", 1)
    assert queue is not None
    start, size, due_ms = queue.unit(0) or (0, 0, 0)
    queue.repair(0, start, size, due_ms + (1 << 40))
    made.system.advance(4_800)
    assert bodies(made) == []
    made.system.advance(1_400)
    assert bodies(made) == [b"late"]


# --- levels that are changed


@pytest.mark.parametrize("levels", ["1s 5s 2s", "1s 5s 3h", "1s 5s"])
def test_message_of_a_changed_level_keeps_its_due_time(levels: str) -> None:
    made = broker(message_delay_level=SHORT)
    delayed(made, b"late", 3)
    restarted(made, levels)
    made.system.advance(19_500)
    assert bodies(made) == []
    made.system.advance(1_500)
    assert bodies(made) == [b"late"]


def test_messages_of_a_shortened_level_do_not_wait_for_those_of_the_earlier_delay() -> None:
    """All that was stored behind a message of the earlier delay came late by as much."""
    made = broker(message_delay_level=SHORT)
    for body in (b"late", b"later"):
        delayed(made, body, 3)
        timer = made.send(body, properties="TIMER_DELAY_MS\x0118000")
        assert timer.code == 0
        made.system.advance(500)
    restarted(made, "1s 5s 2s 3s")
    delayed(made, b"soon", 3)
    made.system.advance(3_200)
    assert bodies(made) == [b"soon"]
    delayed(made, b"next", 3)
    for _ in range(2):
        made.system.advance(3_000)
        assert bodies(made) == [b"soon", b"next"]
        restarted(made, "1s 5s 2s 3s")
    made.system.advance(8_000)
    assert bodies(made) == [b"soon", b"next", b"late"], "a timer, at its own time"
    made.system.advance(2_000)
    assert bodies(made)[3:] == [b"later", b"late"]
    made.system.advance(1_500)
    assert bodies(made)[5:] == [b"later"]
    made.stop()
    assert saved(made)[3] == 6


def test_messages_of_a_removed_level_are_served_and_reported() -> None:
    """Formerly they waited forever, without a log line."""
    made = broker(message_delay_level=SHORT)
    delayed(made, b"done", 7)
    made.system.advance(7_000)
    delayed(made, b"first", 7)
    delayed(made, b"other", 3)
    made.system.advance(1_000)
    delayed(made, b"second", 7)
    with capture_logs() as logs:
        restarted(made, "1s 5s 20s")
        made.system.advance(4_000)
    told = [each for each in logs if each["event"].startswith("delay level not configured")]
    assert [(each["level"], each["messages"]) for each in told] == [(7, 2)]
    assert bodies(made) == [b"done"]
    made.system.advance(1_600)
    assert bodies(made) == [b"done", b"first"]
    made.system.advance(20_000)
    assert bodies(made) == [b"done", b"first", b"second", b"other"]
    with capture_logs() as logs:
        restarted(made, "1s 5s 20s")
        made.system.advance(2_000)
    assert not [each for each in logs if each["log_level"] in ("warning", "error")]
    assert saved(made)[7] == 3


def test_store_check_reports_messages_of_a_removed_level() -> None:
    made = broker(message_delay_level=SHORT)
    for _ in range(2):
        delayed(made, b"gone", 7)
    delayed(made, b"kept", 3)
    made.system.advance(1_000)
    made.stop()
    assert not StoreCheck(made.disk, made.store_config).run().findings
    report = StoreCheck(
        made.disk, replace(made.store_config, message_delay_level="1s 5s 20s")
    ).run()
    assert report.is_clean
    assert [each.text for each in report.findings] == [
        "2 messages wait in level 7, which messageDelayLevel does not have (3 levels):"
        " they are delivered when they are due"
    ]


def test_level_without_a_stored_offset_is_delivered_from_its_first_message_and_reported() -> None:
    made = broker(message_delay_level=SHORT)
    delayed(made, b"once", 1)
    made.system.advance(2_000)
    made.stop()
    for path in (OFFSETS, f"{OFFSETS}.bak"):
        if made.disk.exists(path):
            made.disk.unlink(path)
    with capture_logs() as logs:
        started(made)
        made.system.advance(1_000)
    told = [each for each in logs if each["event"].startswith("delay offset unknown")]
    assert [(each["level"], each["messages"]) for each in told] == [(1, 1)]
    assert bodies(made) == [b"once", b"once"]


def test_more_levels_than_eighteen_are_served() -> None:
    made = broker(message_delay_level=" ".join(["1s"] * 20 + ["2s"]))
    delayed(made, b"21", 21)
    made.system.advance(1_900)
    assert bodies(made) == []
    made.system.advance(1_000)
    assert bodies(made) == [b"21"]
