"""Tests of actors/network/hooks.py: what hooks see, and that failing hooks do no harm."""

from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.network.hooks import Hook, Hooks, PullContext, SendContext
from protocol.batch import BatchMessage, encode_batch
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from tests.support.brokers import (
    BROKER,
    STORE,
    FramesPeer,
    SimulatedBroker,
    pull_command,
    send_command,
)
from troupemq.testing.fake_disk import FakeDisk


class Diary:
    """Keeps a copy of everything it is shown."""

    def __init__(self) -> None:
        self.before: list[SendContext] = []
        self.after: list[SendContext] = []

    def before_send(self, context: SendContext) -> None:
        self.before.append(replace(context))

    def after_send(self, context: SendContext) -> None:
        self.after.append(replace(context))


class PullDiary:
    """Hook that records pulls; its changes of a context are kept."""

    def __init__(self) -> None:
        self.before: list[PullContext] = []
        self.after: list[PullContext] = []
        self.pairs: list[tuple[PullContext, PullContext]] = []
        self._begun: list[PullContext] = []

    def before_pull(self, context: PullContext) -> None:
        self.before.append(replace(context))
        self._begun.append(context)

    def after_pull(self, context: PullContext) -> None:
        self.after.append(replace(context))
        self.pairs.append((next(each for each in self._begun if each is context), context))


class Broken:
    """Fails in all."""

    def before_send(self, context: SendContext) -> None:
        raise ValueError("before")

    def after_send(self, context: SendContext) -> None:
        raise ValueError("after")

    def before_pull(self, context: PullContext) -> None:
        raise ValueError("before")

    def after_pull(self, context: PullContext) -> None:
        raise ValueError("after")


def broker(*hooks: Hook, **options: Any) -> SimulatedBroker:
    made = SimulatedBroker(6, FakeDisk(), hooks=hooks, **options)
    made.make_topic()
    return made


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_hook_sees_a_send_and_its_result(flush: str) -> None:
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


def test_a_hook_learns_why_a_send_was_refused() -> None:
    diary = Diary()
    made = broker(diary)
    made.send(topic="bad topic")
    (after,) = diary.after
    assert (after.success, after.code) == (False, ResponseCode.SYSTEM_ERROR)
    assert (after.remark or "").startswith("The specified topic contains illegal characters")
    assert len(diary.before) == 1


def test_a_hook_sees_a_batch_once_with_all_its_ids() -> None:
    diary = Diary()
    made = broker(diary)
    body = encode_batch([BatchMessage(b"1"), BatchMessage(b"2")])
    answer = made.send(body, batch=True)
    (after,) = diary.after
    assert after.message_id == (answer.fields or {})["msgId"]
    assert after.record_bytes == sum(record.record_bytes for record in made.records())
    assert after.body_bytes == len(body)


def test_a_hook_sees_each_send_of_a_read_and_the_one_way_ones() -> None:
    diary, peer = Diary(), FramesPeer()
    made = broker(diary)
    sends = [send_command(b"x" * number, oneway=number == 1) for number in range(4)]
    made.system.address("put_message").tell(peer.sends(*sends))
    made.system.advance(10)
    assert [context.body_bytes for context in diary.after] == [0, 1, 2, 3]
    assert [context.queue_offset for context in diary.after] == [0, 1, 2, 3]
    assert len(peer.received) == 3


def test_a_hook_sees_a_parked_send_once() -> None:
    diary = Diary()
    made = broker(diary)
    assert made.send(topic="New").code == ResponseCode.SUCCESS
    assert made.send(topic="Newer", default_topic="Nothing").code == ResponseCode.TOPIC_NOT_EXIST
    assert [context.topic for context in diary.before] == ["New", "Newer"]
    assert [context.success for context in diary.after] == [True, False]


def test_hooks_of_a_slave_see_refused_sends() -> None:
    diary = Diary()
    config = replace(BROKER, broker_role="SLAVE", broker_id=1)
    made = SimulatedBroker(6, config=config, hooks=[diary])
    made.send(topic="TBW102")
    assert [context.code for context in diary.after] == [ResponseCode.SERVICE_NOT_AVAILABLE]


def test_a_hook_that_fails_is_logged_and_the_send_goes_on() -> None:
    diary = Diary()
    made = broker(Broken(), diary)
    with capture_logs() as lines:
        assert made.send().code == ResponseCode.SUCCESS
    failed = [line for line in lines if line["event"] == "hook failed"]
    assert [(line["hook"], line["at"]) for line in failed] == [
        ("Broken", "before_send"),
        ("Broken", "after_send"),
    ]
    assert len(diary.before) == len(diary.after) == 1


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


def test_unused_hooks_cost_no_preparation() -> None:
    nothing, sends, pulls = Hooks(), Hooks([Diary()]), Hooks([PullDiary()])
    assert (nothing.see_sends, nothing.see_pulls, nothing.see_send_backs) == (False, False, False)
    assert (sends.see_sends, sends.see_pulls, sends.see_send_backs) == (True, False, False)
    assert (pulls.see_sends, pulls.see_pulls, pulls.see_send_backs) == (False, True, False)


def test_a_hook_sees_a_pull_and_its_result() -> None:
    diary = PullDiary()
    made = broker(diary)
    for body in (b"one", b"two", b"three"):
        made.send(body, queue_id=2)
    made.system.drain()
    made.pull(1, queue_id=2, count=8)
    (before,), (after,) = diary.before, diary.after
    assert (before.group, before.topic, before.queue_id) == ("consumers", "Topic", 2)
    assert (before.client, before.offset, before.max_count) == ("127.0.0.1:1", 1, 8)
    assert (before.success, before.held, before.next_offset) == (False, False, -1)
    assert (after.success, after.code, after.remark) == (True, ResponseCode.SUCCESS, "FOUND")
    sizes = [record.record_bytes for record in made.records()]
    assert (after.message_count, after.record_bytes) == (2, sum(sizes[1:]))
    assert (after.next_offset, after.held) == (3, False)
    assert diary.pairs[0][0] is diary.pairs[0][1]


def test_a_hook_sees_a_held_pull_on_arrival_and_on_answer() -> None:
    diary = PullDiary()
    made = broker(diary)
    answers: list[RemotingCommand] = []
    made.client.start(pull_command(hold_ms=15_000), answers.append)
    made.system.advance(1000)
    assert (len(diary.before), len(diary.after), answers) == (1, 0, [])
    made.send(b"body")
    made.system.advance(10)
    (after,) = diary.after
    assert (len(diary.before), after.held, after.message_count) == (1, True, 1)
    assert (after.code, after.client) == (ResponseCode.SUCCESS, "127.0.0.1:1")
    made.client.start(pull_command(1, hold_ms=15_000), answers.append)
    made.system.advance(16_000)  # nothing came
    assert len(answers) == len(diary.after) == 2
    late = diary.after[1]
    assert (late.held, late.success, late.next_offset) == (True, False, 1)
    assert (late.code, late.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")


def test_a_hook_learns_why_a_pull_was_refused() -> None:
    diary = PullDiary()
    made = broker(diary)
    answer = made.pull(topic="Nowhere")
    (after,) = diary.after
    assert (after.code, after.remark) == (answer.code, answer.remark)
    assert after.code == ResponseCode.TOPIC_NOT_EXIST
    assert (after.success, after.next_offset) == (False, -1)


def test_a_hook_that_fails_at_a_pull_is_logged_and_the_pull_is_answered() -> None:
    diary = PullDiary()
    made = broker(Broken(), diary)
    made.send()
    made.system.drain()
    with capture_logs() as lines:
        answer = made.pull()
    assert answer.code == ResponseCode.SUCCESS and answer.body
    failed = [line["at"] for line in lines if line["event"] == "hook failed"]
    assert failed == ["before_pull", "after_pull"]
    assert len(diary.before) == len(diary.after) == 1


def test_an_async_hook_is_refused_before_the_broker_starts() -> None:
    class Waiting:
        async def after_send(self, context: SendContext) -> None:
            raise AssertionError("nothing awaits it")

    hook: Any = Waiting()
    with pytest.raises(ValueError, match=r"Waiting\.after_send is async: use a plain def"):
        Hooks([hook])


def test_a_hook_that_returns_a_coroutine_is_logged_as_failed() -> None:
    async def later() -> None:
        raise AssertionError("nothing awaits it")

    class Hiding:
        def before_send(self, context: SendContext) -> Any:
            return later()

    with capture_logs() as lines:
        Hooks([Hiding()]).before(SendContext("g", "T", 1, b"", 0, "c", 0))  # type: ignore[list-item]
    (line,) = lines
    assert line["event"] == "hook failed" and "returned a coroutine" in line["error"]
