"""What a user's function sees of a send, before it and after it, and what it cannot spoil."""

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.hooks import Hooks, SendContext, SendHook
from protocol.batch import BatchMessage, encode_batch
from protocol.codes import ResponseCode
from tests.support.brokers import BROKER, STORE, FramesPeer, SimulatedBroker, send_command
from tests.support.fake_disk import FakeDisk


class Diary:
    """Keeps a copy of everything it is shown."""

    def __init__(self) -> None:
        self.before: list[SendContext] = []
        self.after: list[SendContext] = []

    def before_send(self, context: SendContext) -> None:
        self.before.append(replace(context))

    def after_send(self, context: SendContext) -> None:
        self.after.append(replace(context))


class Broken:
    """Fails in both."""

    def before_send(self, context: SendContext) -> None:
        raise ValueError("before")

    def after_send(self, context: SendContext) -> None:
        raise ValueError("after")


def broker(*hooks: SendHook, **options: Any) -> SimulatedBroker:
    made = SimulatedBroker(6, FakeDisk(), hooks=hooks, **options)
    made.make_topic()
    return made


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_hook_sees_a_send_come_and_where_it_went(flush: str) -> None:
    diary = Diary()
    made = broker(diary, store_config=replace(STORE, flush_disk_type=flush))
    made.send(queue_id=2)
    answer = made.send(b"four", queue_id=2, properties="KEYS\x01k", born_timestamp=77)
    before, after = diary.before[1], diary.after[1]
    assert (before.producer_group, before.topic) == ("producers", "Topic")
    assert (before.body_bytes, before.properties) == (4, b"KEYS\x01k")
    assert (before.born_timestamp_ms, before.client, before.queue_id) == (77, "127.0.0.1:1", 2)
    assert (before.message_id, before.success) == ("", False)
    fields = answer.fields or {}
    assert after.message_id == fields["msgId"]
    assert (after.queue_id, after.queue_offset) == (2, 1)
    assert after.record_bytes == made.records()[1].record_bytes
    assert (after.success, after.code, after.remark) == (True, ResponseCode.SUCCESS, None)
    made.stop()


def test_a_hook_learns_why_a_send_was_refused() -> None:
    diary = Diary()
    made = broker(diary)
    made.send(topic="bad topic")
    (after,) = diary.after
    assert (after.success, after.code) == (False, ResponseCode.SYSTEM_ERROR)
    assert (after.remark or "").startswith("The specified topic contains illegal characters")
    assert len(diary.before) == 1
    made.stop()


def test_a_hook_sees_a_batch_once_with_all_its_ids() -> None:
    diary = Diary()
    made = broker(diary)
    body = encode_batch([BatchMessage(b"1"), BatchMessage(b"2")])
    answer = made.send(body, batch=True)
    (after,) = diary.after
    assert after.message_id == (answer.fields or {})["msgId"]
    assert after.record_bytes == sum(record.record_bytes for record in made.records())
    assert after.body_bytes == len(body)
    made.stop()


def test_a_hook_sees_each_send_of_a_read_and_the_one_way_ones() -> None:
    diary, peer = Diary(), FramesPeer()
    made = broker(diary)
    sends = [send_command(b"x" * number, oneway=number == 1) for number in range(4)]
    made.system.address("put_message").tell(peer.sends(*sends))
    made.system.advance(10)
    assert [context.body_bytes for context in diary.after] == [0, 1, 2, 3]
    assert [context.queue_offset for context in diary.after] == [0, 1, 2, 3]
    assert len(peer.received) == 3
    made.stop()


def test_a_send_that_waits_for_its_topic_is_seen_once() -> None:
    diary = Diary()
    made = broker(diary)
    assert made.send(topic="New").code == ResponseCode.SUCCESS
    assert made.send(topic="Newer", default_topic="Nothing").code == ResponseCode.TOPIC_NOT_EXIST
    assert [context.topic for context in diary.before] == ["New", "Newer"]
    assert [context.success for context in diary.after] == [True, False]
    made.stop()


def test_a_slave_s_hooks_learn_that_nothing_is_taken() -> None:
    diary = Diary()
    config = replace(BROKER, broker_role="SLAVE", broker_id=1)
    made = SimulatedBroker(6, config=config, hooks=[diary])
    made.send(topic="TBW102")
    assert [context.code for context in diary.after] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    made.stop()


def test_a_hook_that_fails_is_logged_and_the_send_goes_on() -> None:
    diary = Diary()
    made = broker(Broken(), diary)
    with capture_logs() as lines:
        assert made.send().code == ResponseCode.SUCCESS
    failed = [line for line in lines if line["event"] == "send hook failed"]
    assert [(line["hook"], line["at"]) for line in failed] == [
        ("Broken", "before_send"),
        ("Broken", "after_send"),
    ]
    assert len(diary.before) == len(diary.after) == 1
    made.stop()


def test_hooks_are_called_in_the_order_in_which_they_were_registered() -> None:
    calls: list[str] = []

    class Named(Diary):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def before_send(self, context: SendContext) -> None:
            calls.append(f"before {self.name}")

        def after_send(self, context: SendContext) -> None:
            calls.append(f"after {self.name}")

    made = broker(Named("a"), Named("b"))
    made.send()
    assert calls == ["before a", "before b", "after a", "after b"]
    made.stop()


def test_without_hooks_nothing_is_prepared_for_them() -> None:
    assert not Hooks()
    assert Hooks([Diary()])
