"""Attempts to hold a broker up by expressions over properties that compile, but for long: A13, A14.

What it takes is the processor time of a message's handler: nothing of others on this machine is in
it but their caches, and of several attempts the best counts.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from time import thread_time
from typing import Any

import pytest

from actors.consumers.clients import Clients
from actors.engine.short_collections import short_collections
from actors.pulling.pull_message import PullMessage
from actors.tables.consumer_filters import FilterTable
from protocol.bodies import CheckClientRequest, ConsumerData, HeartbeatData, SubscriptionData
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from protocol.sql92 import EXPRESSION_CHARS_MAX, compile
from tests.support.brokers import BROKER, SimulatedBroker, pull_command
from tests.support.sockets import paired_lines

LOOP_S = 0.05
BUSY = 3
"""Factor for a busy machine; all seven at once take ten times as long."""
ATTEMPTS = 5
LONGEST = {
    "balanced parentheses": lambda n: "(" * 4000 + f"a = 1{n:03}" + ")" * 4000,
    "a chain of AND": lambda n: " AND ".join([f"a=1{n:03}"] * 700),
    "terms in parentheses": lambda n: "OR".join([f"(a=1{n:03})"] * 680),
    "negative numbers": lambda n: "OR ".join([f"a=-1{n:03}"] * 800),
    "a parenthesis too many": lambda n: "(" * 2000 + f"a = 1{n:03}" + ")" * 2001 + " OR" * 1300,
}
Long = Callable[[int], str]
_numbers = count()


class Handlers:
    """Recorder of the time that the handlers of a broker's filters take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest_s = 0.0
        self.most_compiled = 0
        self._compiled = 0
        plain = compile._compiled

        def counted(expression: str) -> object:
            self._compiled += 1
            return plain(expression)

        monkeypatch.setattr(compile, "_compiled", counted)
        for actor in (Clients, PullMessage, FilterTable):
            timed = {kind: self._timed(each) for kind, each in actor.handlers.items()}
            monkeypatch.setattr(actor, "handlers", timed)

    def _timed(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        def timed(actor: object, message: object) -> None:
            self._compiled, began_s = 0, thread_time()
            handler(actor, message)
            self.longest_s = max(self.longest_s, thread_time() - began_s)
            self.most_compiled = max(self.most_compiled, self._compiled)

        return timed

    def best_of(self, attempt: Callable[[], object]) -> float:
        """The longest handler of the best attempt, in seconds."""
        found = []
        with short_collections():  # as in a broker
            for _ in range(ATTEMPTS):
                self.longest_s = 0.0
                attempt()
                found.append(self.longest_s)
        return min(found)


def filtering() -> SimulatedBroker:
    made = SimulatedBroker(1, config=replace(BROKER, property_filter_enable=True))
    made.make_topic()
    return made


@pytest.fixture
def made() -> SimulatedBroker:
    return filtering()


def heartbeat(*expressions: str, group: str = "consumers") -> RemotingCommand:
    wanted = [
        SubscriptionData(f"T{n}", each, expression_type="SQL92", sub_version=next(_numbers))
        for n, each in enumerate(expressions)
    ]
    data = ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", None, wanted)
    return RemotingCommand(
        Code.HEART_BEAT, body=HeartbeatData("client", consumer_data_set=[data]).encode()
    )


@pytest.mark.heavy
@pytest.mark.parametrize("long", LONGEST.values(), ids=LONGEST.keys())
def test_a13_long_expressions_of_a_heartbeat_are_compiled_one_a_round(
    long: Long, made: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = Handlers(monkeypatch)

    def attempt() -> None:
        expressions = [long(next(_numbers) % 1000) for _ in range(7)]
        assert max(map(len, expressions)) <= EXPRESSION_CHARS_MAX
        assert made.new_client(next(_numbers)).request(heartbeat(*expressions)).code == 0

    assert handlers.best_of(attempt) < LOOP_S * BUSY
    assert handlers.most_compiled == 1


@pytest.mark.heavy
@pytest.mark.parametrize("long", LONGEST.values(), ids=LONGEST.keys())
def test_a13_long_expressions_of_pulls_and_checks_are_compiled_one_a_round(
    long: Long, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = filtering()
    handlers = Handlers(monkeypatch)
    codes: set[int] = set()

    def check(expression: str) -> RemotingCommand:
        data = SubscriptionData("Topic", expression, expression_type="SQL92")
        body = CheckClientRequest("client", "consumers", data).encode()
        return RemotingCommand(Code.CHECK_CLIENT_CONFIG, body=body)

    with paired_lines(made, 1) as (line,):
        attempts = [
            [
                replace(each, opaque=next(_numbers))
                for _ in range(4)
                for each in (
                    check(long(next(_numbers) % 1000)),
                    pull_command(expression=long(next(_numbers) % 1000), expression_type="SQL92"),
                )
            ]
            for _ in range(ATTEMPTS)
        ]
        left = iter(attempts)

        def attempt() -> None:
            asked = next(left)
            line.send(*asked)
            answers = line.receive_now()
            assert len(answers) == len(asked)
            codes.update(each.code for each in answers)
            made.system.advance(60_000)

        assert handlers.best_of(attempt) < LOOP_S * BUSY
    assert handlers.most_compiled == 1
    assert codes <= {0, ResponseCode.PULL_NOT_FOUND, ResponseCode.SUBSCRIPTION_PARSE_FAILED}


def test_a13_a_client_of_many_groups_registers_all_its_filters_in_one_heartbeat(
    made: SimulatedBroker,
) -> None:
    expressions = [
        f"region = 'north-{n}' AND (amount BETWEEN 10 AND {n + 10} OR vip IS NOT NULL)"
        for n in range(300)
    ]
    assert made.ask(heartbeat(*expressions)).code == 0
    filters = made.broker.tables.filters.value
    assert {each.expression for each in filters} == set(expressions)
    made.make_topic("T7")
    pull = pull_command(topic="T7", consumer_group="consumers", expression=None)
    assert made.ask(pull).code == ResponseCode.PULL_NOT_FOUND


def test_a14_an_evicted_expression_is_compiled_again_for_its_pulls(
    made: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.make_topic("T0")
    assert made.ask(heartbeat("a > 5")).code == 0
    pull = pull_command(topic="T0", consumer_group="consumers", expression=None)
    compile._cache.clear()
    handlers = Handlers(monkeypatch)
    assert made.ask(pull).code == ResponseCode.PULL_NOT_FOUND
    assert (handlers.most_compiled, compile.is_compiled("a > 5")) == (1, True)


def test_a14_the_cache_of_compiled_expressions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "CACHED_CHARS", 1000)
    monkeypatch.setattr(compile, "CACHED_EXPRESSIONS", 5)
    monkeypatch.setattr(compile, "_cache", {})
    for n in range(20):
        compile.compile_filter(f"a = {n}")
    assert [*compile._cache] == [f"a = {n}" for n in range(15, 20)]
    compile.compile_filter("a = 1 ".ljust(990))
    assert len(compile._cache) == 2
