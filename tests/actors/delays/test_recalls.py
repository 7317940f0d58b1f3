"""Recall of timers: a cancelled timer is never delivered, and the answer says what happened."""

import pytest

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.send import RecallMessageHeader
from protocol.timers import INVALID_HANDLE, RecallHandle
from tests.actors.delays.test_timers import bodies, broker, restarted
from tests.support.brokers import SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk


def sent(made: SimulatedBroker, delay_ms: int, key: str = "ID") -> str:
    """Send a timer and return its handle."""
    answer = made.send(
        key.encode(), properties=f"TIMER_DELAY_MS\x01{delay_ms}\x02UNIQ_KEY\x01{key}"
    )
    return (answer.fields or {})["recallHandle"]


def recall(made: SimulatedBroker, handle: str, topic: str = "Topic") -> RemotingCommand:
    header = RecallMessageHeader(topic, handle, "producers").encode()
    return made.ask(RemotingCommand(RequestCode.RECALL_MESSAGE, header))


@pytest.mark.parametrize("delay_ms", [15_000, 55_000, 150_000])
def test_recalled_timer_is_not_delivered_even_after_a_power_cut(delay_ms: int) -> None:
    """Also one that has moved through delay levels."""
    made = broker(flush_disk_type="SYNC_FLUSH")
    handle = sent(made, delay_ms)
    sent(made, delay_ms, "other")
    made.system.advance(delay_ms - 10_000)
    answer = recall(made, handle)
    assert (answer.code, answer.fields) == (0, {"msgId": "ID", "MSG_REGION": "DefaultRegion"})
    made.crash()
    assert isinstance(made.disk, FakeDisk)
    made.disk = made.disk.crashed(1)
    made.start()
    made.system.advance(75_000)
    assert bodies(made) == [b"other"]
    assert made.broker.timer_figures.pending == 0


def test_recall_of_a_delivered_or_recalled_timer_is_refused() -> None:
    made = broker()
    handle = sent(made, 15_000)
    assert recall(made, handle).code == 0
    again = recall(made, handle)
    assert (again.code, again.remark) == (1, "recall failed, execute error")
    early = sent(made, 1_000)
    made.system.advance(2_000)
    late = recall(made, early)
    assert (late.code, late.remark) == (604, "recall failed, timestamp invalid")


def test_recall_is_refused_with_the_codes_and_texts_of_5x() -> None:
    made = broker()
    good = RecallHandle.decode(sent(made, 15_000))
    cases = [
        ("", "Topic", 604, INVALID_HANDLE),
        ("%%%", "Topic", 604, INVALID_HANDLE),
        (good._replace(topic="Other").encode(), "Topic", 604, "recall failed, topic not match"),
        (
            good._replace(broker_name="b").encode(),
            "Topic",
            604,
            "recall failed, broker service not available",
        ),
        (good.encode(), "None", 17, "recall failed, the topic[None] not exist"),
        (good._replace(unique_key="X").encode(), "Topic", 1, "recall failed, execute error"),
        (good._replace(due_ms=-1).encode(), "Topic", 604, "recall failed, timestamp invalid"),
    ]
    for handle, topic, code, remark in cases:
        answer = recall(made, handle, topic)
        assert (answer.code, answer.remark) == (code, remark)
    object.__setattr__(made.broker.config, "recall_message_enable", False)
    answer = recall(made, good.encode())
    assert (answer.code, answer.remark) == (16, "recall failed, operation is forbidden")


def test_recalled_timer_stays_recalled_over_a_restart() -> None:
    made = broker(flush_delay_offset_interval_ms=60_000)
    handle = sent(made, 15_000)
    sent(made, 16_000, "other")
    assert recall(made, handle).code == 0
    made.stop()
    restarted(made)
    made.system.advance(70_000)
    assert bodies(made) == [b"other"]


def test_handle_survives_its_text() -> None:
    handle = RecallHandle("Topic", "broker-a", 1_700_000_000_000, "ID")
    assert RecallHandle.decode(handle.encode()) == handle
    assert RecallHandle.decode(handle.encode().rstrip("=")) == handle
