"""Tests of the flows alone: no socket, no thread, and a clock that the test sets."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.pop import (
    ChangeInvisibleTimeHeader,
    PopMessageHeader,
    PopMessageResponseHeader,
)
from protocol.message import MessageRecord, encode_record
from tests.troupemq.client.receiving.pop_broker import HOST
from troupemq.client.connection.calls import LookUpRoute, Value, drive
from troupemq.client.connection.route import Route
from troupemq.client.consuming.consume import DELAYS_S
from troupemq.client.consuming.subscription import TopicSubscription
from troupemq.client.errors import (
    BadAnswer,
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    RouteNotFound,
)
from troupemq.client.message import MessageQueue
from troupemq.client.receiving.flows import (
    REST_S,
    REST_S_MAX,
    SETTLE_TIMEOUT_MS,
    Ask,
    Flow,
    Flows,
    Pause,
    ReceiveTerms,
    Several,
    Wanted,
)
from troupemq.client.receiving.receipt import Receipt

Answers = Callable[[Ask], RemotingCommand | ClientError]


class Driver:
    """Runs flows on a clock of its own: each wait takes its whole time."""

    def __init__(self, answers: Answers, brokers: tuple[str, ...] = ("b",)) -> None:
        self.now_s = 0.0
        self.asked: list[Ask] = []
        self.waited: list[Wanted] = []
        self.brokers: tuple[str, ...] | ClientError = brokers
        self.notify: Callable[[Several], list[RemotingCommand | None]] | None = None
        self._answers = answers
        terms = ReceiveTerms("g", 60_000, False, False, 0, 16)
        self.flows = Flows(terms, lambda: self.now_s)

    def run(self, flow: Flow[Value]) -> Value:
        return drive(flow, self._carry_out)

    def receive(self, *topics: str, wait_ms: float = 5000, count: int = 32) -> list[bytes]:
        wanted = {name: TopicSubscription.of(name, "*", None, 1) for name in topics or ("T",)}
        received = self.run(self.flows.receive(wanted, count, wait_ms))
        return [each.message.body for each in received]

    def _carry_out(self, wanted: Wanted) -> Any:
        match wanted:
            case Ask():
                self.asked.append(wanted)
                answer = self._answers(wanted)
                if isinstance(answer, ClientError):
                    raise answer
                if answer.code == NOTHING:
                    self.now_s += wanted.timeout_ms / 1000
                return answer
            case LookUpRoute():
                if isinstance(self.brokers, ClientError):
                    raise self.brokers
                queues = tuple(MessageQueue(wanted.topic, name, 0) for name in self.brokers)
                return Route(queues, queues, {})
            case Several() if self.notify is not None:
                return self.notify(wanted)
            case Several():
                self.waited.append(wanted)
                self.now_s += wanted.timeout_ms / 1000
                return [None] * len(wanted.asks)
            case Pause():
                self.waited.append(wanted)
                self.now_s += wanted.ms / 1000
                return None


NOTHING = ResponseCode.POLLING_TIMEOUT


def nothing(ask: Ask) -> RemotingCommand:
    return ask.command.answer(NOTHING)


def message(ask: Ask, body: bytes = b"a") -> RemotingCommand:
    header = PopMessageHeader.decode(ask.command.fields)
    record = MessageRecord(header.topic, body, queue_id=0, born_host=HOST, store_host=HOST)
    fields = PopMessageResponseHeader(
        pop_time_ms=1, invisible_time_ms=60_000, revive_queue_id=0, rest_num=0
    ).encode()
    return ask.command.answer(fields=fields, body=encode_record(record))


def test_one_source_is_asked_once_with_the_whole_wait() -> None:
    driver = Driver(nothing)
    assert driver.receive(wait_ms=5000) == []
    (ask,) = driver.asked
    assert PopMessageHeader.decode(ask.command.fields).poll_time_ms == 5000
    assert (driver.now_s, driver.waited) == (5.0, [])


def test_a_broker_that_does_not_hold_is_not_asked_in_a_busy_loop() -> None:
    driver = Driver(lambda ask: ask.command.answer(ResponseCode.PULL_NOT_FOUND))
    assert driver.receive(wait_ms=100) == []
    assert len(driver.asked) <= 12
    assert driver.now_s == pytest.approx(0.1)


def test_several_sources_are_asked_in_turn_and_their_notifications_awaited() -> None:
    driver = Driver(lambda ask: ask.command.answer(NOTHING), brokers=("a", "b"))
    assert driver.receive("T", "U", wait_ms=1500) == []
    assert [ask.timeout_ms for ask in driver.asked] == [0] * len(driver.asked)
    first, second = driver.waited
    assert isinstance(first, Several)
    assert {(ask.topic, ask.broker_name) for ask in first.asks} == {
        (topic, name) for topic in ("T", "U") for name in ("a", "b")
    }
    assert all(ask.command.code == RequestCode.NOTIFICATION for ask in first.asks)
    assert isinstance(second, Several)
    assert (first.timeout_ms, second.timeout_ms) == (1000, 500)


def test_notifications_in_vain_are_no_busy_loop() -> None:
    """Such as of messages that the filter leaves out, or that other members get."""

    def several(ask: Several) -> list[RemotingCommand | None]:
        return [each.command.answer() for each in ask.asks]

    driver = Driver(lambda ask: ask.command.answer(NOTHING), brokers=("a", "b"))
    driver.notify = several
    assert driver.receive(wait_ms=5000) == []
    assert len(driver.asked) < 40
    assert driver.now_s == pytest.approx(5.0)


def test_each_receive_begins_at_another_source() -> None:
    driver = Driver(message, brokers=("a", "b"))
    for _ in range(4):
        driver.receive(count=1)
    assert sorted(ask.broker_name for ask in driver.asked) == ["a", "a", "b", "b"]


def test_a_broker_that_fails_rests_longer_each_time_and_the_receive_goes_on() -> None:
    failing = True
    asked_s: list[float] = []

    def answer(ask: Ask) -> RemotingCommand | ClientError:
        if ask.broker_name == "bad":
            asked_s.append(driver.now_s)
            if failing:
                return ConnectionFailed("bad: connection refused")
        return ask.command.answer(NOTHING)

    driver = Driver(answer, brokers=("bad", "good"))
    driver.receive(wait_ms=30_000)
    rests = [later - earlier for earlier, later in pairwise(asked_s)]
    assert rests[0] >= REST_S and max(rests) <= REST_S_MAX + 1
    assert 10 < len(asked_s) < 20
    failing = False
    driver.receive(wait_ms=10_000)
    failing, begun = True, len(asked_s)
    driver.receive(wait_ms=2000)
    assert len(asked_s) - begun >= 2  # after a success a first rest is short again


def test_a_refusal_of_one_broker_is_logged_and_that_of_all_raised() -> None:
    def refuse(ask: Ask) -> RemotingCommand | ClientError:
        if ask.broker_name == "good":
            return message(ask)
        return ask.command.answer(ResponseCode.NO_PERMISSION, remark="no")

    assert Driver(refuse, brokers=("bad", "good")).receive() == [b"a"]
    with pytest.raises(BrokerError, match="no"):
        Driver(refuse, brokers=("bad", "worse")).receive()


def test_messages_found_before_the_stop_are_returned() -> None:
    def answer(ask: Ask) -> RemotingCommand | ClientError:
        return message(ask) if len(driver.asked) == 1 else ClientClosed("the client is stopped")

    driver = Driver(answer, brokers=("a", "b"))
    assert driver.receive() == [b"a"]
    with pytest.raises(ClientClosed):
        driver.receive()


def test_a_missing_topic_is_looked_for_until_the_wait_is_over() -> None:
    driver = Driver(nothing)
    driver.brokers = RouteNotFound("the name server does not know the topic T")
    assert driver.receive(wait_ms=2500) == []
    assert driver.asked == []
    assert driver.now_s == pytest.approx(2.5)


def test_a_settlement_is_tried_again_until_its_time_is_over() -> None:
    driver = Driver(lambda ask: message(ask))
    wanted = {"T": TopicSubscription.of("T", "*", None, 1)}
    receipt: Receipt
    (receipt,) = driver.run(driver.flows.receive(wanted, 1, 0))
    tries = 0

    def fail(ask: Ask) -> RemotingCommand | ClientError:
        nonlocal tries
        tries += 1
        if tries == 4:
            return ask.command.answer()
        if tries == 2:
            return ask.command.answer(ResponseCode.SYSTEM_BUSY, remark="busy")
        return ConnectionFailed("b: connection refused")

    again = Driver(fail)
    assert again.run(again.flows.ack([receipt])) == []
    assert tries == 4
    never = Driver(lambda ask: ConnectionFailed("b: connection refused"))
    with pytest.raises(ConnectionFailed):
        never.run(never.flows.ack([receipt]))
    assert never.now_s * 1000 == pytest.approx(SETTLE_TIMEOUT_MS, abs=250)


@pytest.mark.parametrize("tries, level", [(-1, 2), (-3, 1), (-100, 1), (99, 18)])
def test_a_message_with_any_number_of_tries_is_given_back(tries: int, level: int) -> None:
    """Far below zero, the retry raised IndexError in place of the application's exception."""
    driver = Driver(message)
    wanted = {"T": TopicSubscription.of("T", "*", None, 1)}
    (receipt,) = driver.run(driver.flows.receive(wanted, 1, 0))
    receipt.message.reconsume_times = tries
    driver.flows = Flows(replace(driver.flows.terms, retries_max=100), lambda: driver.now_s)
    with suppress(BadAnswer):  # the answer has no new handle
        driver.run(driver.flows.retry(receipt))
    header = ChangeInvisibleTimeHeader.decode(driver.asked[-1].command.fields)
    assert header.invisible_time_ms == DELAYS_S[level - 1] * 1000


def test_a_wait_ends_when_a_resting_broker_is_asked_again() -> None:
    """Such a wait ended ten times a second."""
    driver = Driver(lambda ask: ConnectionFailed("b: connection refused"))
    wanted = {"T": TopicSubscription.of("T", "*", None, 1)}
    for _ in range(4):
        driver.receive(wait_ms=0)
        driver.now_s += REST_S_MAX
    driver.receive(wait_ms=0)
    driver.waited.clear()
    begun_s = driver.now_s
    assert [driver.run(driver.flows.wait(wanted, 5000)) for _ in range(2)] == [False, False]
    pauses = [each.ms for each in driver.waited if isinstance(each, Pause)]
    assert pauses == [1000.0, pytest.approx(600.0)]
    assert driver.now_s - begun_s == pytest.approx(REST_S * 16)


def test_a_wait_for_a_missing_topic_lasts_a_second() -> None:
    driver = Driver(nothing)
    driver.brokers = RouteNotFound("no such topic")
    assert not driver.run(driver.flows.wait({"T": TopicSubscription.of("T", "*", None, 1)}, 5000))
    assert driver.now_s == 1.0
