"""Tests of handlers that fail on a peer's message: which request, actor or peer it costs."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from select import EPOLLIN
from socket import socket, socketpair
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.broker import RESPONDERS
from actors.consumers.clients import Clients
from actors.engine.actor import Actor, handles
from actors.engine.messages import Message
from actors.engine.supervisor import FAILURES_MAX, ChildSpec
from actors.engine.system import ActorSystem
from actors.jobs.spark_jobs import SparkJobs
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.page import MetricsPage
from actors.namesrv_server import RESPONDERS as NAMESRV_RESPONDERS
from actors.network.connection import REQUEST_FAILURES_MAX, REQUEST_FAILURES_WITHIN_MS
from actors.network.messages import Request
from actors.network.request import Responder, serves
from actors.tables.topics import TopicTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from tests.support.actors import Arrivals
from tests.support.brokers import SimulatedBroker
from tests.support.cast import Boom, Diary, Do, Recorder, Say
from tests.support.metrics import text_of
from tests.support.peers import RecordingPeer
from tests.support.sockets import Line, paired_lines, serving_broker, serving_namesrv
from troupemq.testing.simulation import SimulatedSystem

READ_CODE, CHANGE_CODE, TOLD_CODE = (
    RequestCode.GET_MAX_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.GET_MIN_OFFSET,
)


@dataclass(slots=True)
class Measure(Message):
    """A later step of a request, by a handler that only reads."""

    request: Request

    def on_undelivered(self, remark: str) -> None:
        self.request.refuse(remark)


class Fragile(Responder):
    """Fails on every request, before or after a change."""

    def __init__(self, diary: Diary) -> None:
        super().__init__()
        self._diary = diary

    def on_start(self) -> None:
        self._diary(f"started {self.incarnation}")

    @serves(READ_CODE)
    def on_read(self, _: Request) -> None:
        raise KeyError("x" * 5000)

    @serves(CHANGE_CODE)
    def on_change(self, _: Request) -> None:
        self.begin_change()
        raise Boom("half changed")

    @serves(TOLD_CODE)
    def on_told(self, request: Request) -> None:
        self.address.tell(Measure(request))

    @handles(Measure, reads_only=True)
    def on_measure(self, _: Measure) -> None:
        raise MemoryError


@dataclass
class Asking:
    """A system with a fragile actor, and a peer."""

    system: ActorSystem
    diary: Diary = field(default_factory=Diary)
    peer: RecordingPeer = field(default_factory=RecordingPeer)

    def start(self, where: Any) -> None:
        self.system.start(ChildSpec("a", lambda _: Fragile(self.diary), where=where))
        self.diary.wait_for(self.system, "started 1")

    def ask(self, code: int, count: int = 1) -> list[RemotingCommand]:
        """Return the answers to `count` requests."""
        answers = Arrivals()
        self.peer.send = answers  # type: ignore[assignment, method-assign]
        for _ in range(count):
            self.system.address("a").tell(Request(RemotingCommand(code), self.peer))
        if isinstance(self.system, SimulatedSystem):
            self.system.run_until(lambda: answers.qsize() == count)
        return [answers.get() for _ in range(count)]


@pytest.mark.parametrize("where", ["loop", "thread"])
@pytest.mark.parametrize("code", [READ_CODE, TOLD_CODE])
def test_a_failure_before_a_change_is_answered_without_a_restart(
    any_system: ActorSystem, where: Any, code: int
) -> None:
    asking = Asking(any_system)
    asking.start(where)
    count = 3 * FAILURES_MAX
    with capture_logs() as lines:
        answers = asking.ask(code, count)
    assert {each.code for each in answers} == {ResponseCode.SYSTEM_ERROR}
    assert all(len(each.remark or "") <= 1000 for each in answers)
    (figures,) = [each for each in any_system.figures() if each.name == "a"]
    assert (figures.incarnation, figures.failed_count) == (1, count)
    assert asking.peer.failures == count
    (line,) = [each for each in lines if each["event"] == "request handler failed"]
    assert (line["actor"], line["peer"]) == ("a", asking.peer.remote)
    assert "test_request_failures.py:" in line["at"]
    assert any_system.gave_up is None


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_failures_of_peers_restart_the_actor_but_never_end_the_process(
    simulated_system: SimulatedSystem, where: Any
) -> None:
    asking = Asking(simulated_system)
    asking.start(where)
    for number in range(4 * FAILURES_MAX):
        began_ms = simulated_system.clock.monotonic_ms()
        (answer,) = asking.ask(CHANGE_CODE)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "Boom: half changed")
        simulated_system.run_until(lambda: simulated_system.address("a").is_up)
        assert simulated_system.clock.monotonic_ms() - began_ms <= 10, "a peer made it wait longer"
        assert simulated_system.address("a").incarnation == number + 2
    assert simulated_system.gave_up is None
    assert asking.peer.failures == 4 * FAILURES_MAX


def test_repeated_internal_failures_still_end_the_process(
    simulated_system: SimulatedSystem,
) -> None:
    simulated_system.start(ChildSpec("a", lambda _: Recorder(Diary())))

    def boom(_: Any) -> None:
        raise Boom

    for _ in range(FAILURES_MAX + 1):
        simulated_system.address("a").tell(Do(boom))
        simulated_system.advance(1000)
    assert simulated_system.gave_up is not None


def test_failed_message_without_a_peer_restarts_its_actor(
    simulated_system: SimulatedSystem,
) -> None:
    class Deaf(Actor):
        @handles(Say)
        def on_say(self, _: Say) -> None:
            raise Boom

    simulated_system.start(ChildSpec("a", lambda _: Deaf()))
    simulated_system.address("a").tell(Say("something"))
    simulated_system.advance(1000)
    assert simulated_system.address("a").incarnation == 2


def test_failed_requests_are_counted_in_the_metrics(simulated_system: SimulatedSystem) -> None:
    asking = Asking(simulated_system)
    asking.start("loop")
    asking.ask(READ_CODE, 2)
    page = MetricsPage({})
    ActorFamilies(simulated_system).write(page)
    assert 'troupemq_request_handler_failures_total{actor="a"} 2' in text_of(page.packed())


class Listening(Actor):
    """Fails whenever its socket has something."""

    def __init__(self, sock: socket) -> None:
        super().__init__()
        self._sock = sock

    def on_start(self) -> None:
        self.system.loop.watch(self._sock, EPOLLIN, self)

    def on_readable(self) -> None:
        raise Boom

    def on_writable(self) -> None:
        raise AssertionError("never asked for")


def test_no_bytes_from_a_peer_end_the_process(
    simulated_system: SimulatedSystem,
) -> None:
    near, far = socketpair()
    with near, far:
        simulated_system.start(ChildSpec("a", lambda _: Listening(near)))
        for number in range(2 * FAILURES_MAX):
            simulated_system.loop.make_ready(near, EPOLLIN)
            simulated_system.advance(10)
            assert simulated_system.address("a").incarnation == number + 2
        assert simulated_system.gave_up is None


# --- every handler

READS = {
    *("GET_ACL_REFUSALS", "GET_BROKER_CLUSTER_ACL_INFO", "GET_BROKER_CLUSTER_ACL_CONFIG"),
    *("GET_BROKER_RUNTIME_INFO", "GET_TOPIC_CONFIG", "GET_SUBSCRIPTIONGROUP_CONFIG"),
    *("GET_ACTORS", "GET_STORE_STATE", "GET_BROKER_CONFIG", "GET_NAMESRV_CONFIG"),
    *("GET_CONSUMER_CONNECTION_LIST", "GET_PRODUCER_CONNECTION_LIST", "GET_ALL_PRODUCER_INFO"),
    *("GET_GROUP_CHANGES", "GET_CONSUMER_LIST_BY_GROUP", "CHECK_CLIENT_CONFIG"),
    *("GET_TOPIC_STATS_INFO", "GET_CONSUME_STATS", "GET_BROKER_CONSUME_STATS"),
    *("QUERY_CONSUME_TIME_SPAN", "QUERY_TOPIC_CONSUME_BY_WHO", "QUERY_CORRECTION_OFFSET"),
    *("GET_CONSUMER_RUNNING_INFO", "CONSUME_MESSAGE_DIRECTLY"),
    *("INVOKE_BROKER_TO_GET_CONSUMER_STATUS", "INVOKE_BROKER_TO_RESET_OFFSET"),
    *("GET_ALL_DELAY_OFFSET", "GET_JOBS", "GET_JOB_LOG", "GET_KV_CONFIG"),
    *("GET_KVLIST_BY_NAMESPACE", "GET_ROUTEINFO_BY_TOPIC", "GET_BROKER_CLUSTER_INFO"),
    *("GET_ALL_TOPIC_LIST_FROM_NAMESERVER", "GET_TOPICS_BY_CLUSTER", "GET_UNIT_TOPIC_LIST"),
    *("GET_SYSTEM_TOPIC_LIST_FROM_NS", "GET_HAS_UNIT_SUB_TOPIC_LIST"),
    *("GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST", "PULL_MESSAGE", "LITE_PULL_MESSAGE"),
    *("VIEW_MESSAGE_BY_ID", "QUERY_MESSAGE", "GET_MAX_OFFSET", "GET_MIN_OFFSET"),
    *("SEARCH_OFFSET_BY_TIMESTAMP", "GET_EARLIEST_MSG_STORETIME", "QUERY_CONSUME_QUEUE"),
    *("READ_RECORDS", "READ_UNITS", "GET_SINK_PROGRESS", "VIEW_BROKER_STATS_DATA"),
    *("QUERY_CONSUMER_OFFSET", "GET_ALL_CONSUMER_OFFSET", "GET_ALL_SUBSCRIPTIONGROUP_CONFIG"),
    *("GET_SYSTEM_TOPIC_LIST_FROM_BROKER", "GET_ALL_TOPIC_CONFIG", "GET_OPEN_TRANSACTIONS"),
    "GET_ALL_MESSAGE_REQUEST_MODE",
}
"""Requests that change nothing of the actor that serves them: it hands them on, or answers.

A handler of any other request says with `begin_change` from where on it changes its actor.
"""

RESPONDER_TYPES: list[type[Responder]] = [
    *(responder for _, responder in RESPONDERS),
    *(responder for _, responder in NAMESRV_RESPONDERS),
    SparkJobs,
]
SERVED = [
    (RequestCode(code), responder, method)
    for responder in RESPONDER_TYPES
    for code, method in responder.serves_codes.items()
]


def begins_change(responder: type[Responder], method: Callable[..., Any], depth: int = 3) -> bool:
    """Whether a method, or one of its own class that it calls, calls `begin_change`."""
    source = inspect.getsource(method)
    if "self.begin_change()" in source:
        return True
    called = [name for name in dir(responder) if f"self.{name}(" in source and depth]
    return any(
        begins_change(responder, function, depth - 1)
        for name in called
        if inspect.isfunction(function := getattr(responder, name)) and function is not method
    )


@pytest.mark.parametrize(
    ("code", "responder", "method"), SERVED, ids=[code.name for code, *_ in SERVED]
)
def test_every_handler_marks_where_it_begins_to_change_state(
    code: RequestCode, responder: type[Responder], method: Callable[..., Any]
) -> None:
    assert begins_change(responder, method) is (code.name not in READS)


# --- real servers


def test_requests_that_hit_a_bug_end_neither_broker_nor_other_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setitem(Clients.serves_codes, int(RequestCode.HEART_BEAT), fails)
    monkeypatch.setitem(TopicTable.serves_codes, int(RequestCode.GET_ALL_TOPIC_CONFIG), fails)
    with serving_broker(tmp_path) as broker, Line.to(broker.ports.main) as other:
        for code in (RequestCode.HEART_BEAT, RequestCode.GET_ALL_TOPIC_CONFIG):
            with Line.to(broker.ports.main) as line:
                for _ in range(REQUEST_FAILURES_MAX + 1):
                    answer = line.ask(RemotingCommand(code, body=b"{}"))
                    assert (answer.code, answer.remark) == (1, "RecursionError: too deep")
                assert line.rest() == []
            assert other.ask(RemotingCommand(RequestCode.GET_BROKER_CONFIG)).code == 0
        starts = {each.name: each.incarnation for each in broker.system.figures()}
        assert (starts["clients"], starts["topics"]) == (1, 1)


def test_broken_registrations_do_not_restart_a_name_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise TypeError("unhashable")

    monkeypatch.setattr("actors.naming.namesrv.check_place", fails)
    fields = {
        "brokerName": "b",
        "brokerAddr": "192.0.2.1:10911",
        "clusterName": "c",
        "haServerAddr": "192.0.2.1:10912",
        "brokerId": "0",
    }
    with serving_namesrv(tmp_path) as namesrv, Line.to(namesrv.port) as line:
        for _ in range(REQUEST_FAILURES_MAX + 1):
            answer = line.ask(RemotingCommand(RequestCode.REGISTER_BROKER, dict(fields)))
            assert (answer.code, answer.remark) == (1, "TypeError: unhashable")
        assert line.rest() == []
        starts = {each.name: each.incarnation for each in namesrv.system.figures()}
        assert starts["namesrv"] == 1


def test_a_connection_that_rarely_fails_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise RecursionError

    monkeypatch.setitem(Clients.serves_codes, int(RequestCode.HEART_BEAT), fails)
    made = SimulatedBroker(1)
    with paired_lines(made, 1) as (line,):
        for _ in range(3):
            for _ in range(REQUEST_FAILURES_MAX):
                line.send(RemotingCommand(RequestCode.HEART_BEAT, body=b"{}"))
                assert [each.code for each in line.receive_now()] == [1]
            made.system.advance(REQUEST_FAILURES_WITHIN_MS + 1)
        for _ in range(REQUEST_FAILURES_MAX + 1):
            line.send(RemotingCommand(RequestCode.HEART_BEAT, body=b"{}"))
        assert len(line.receive_now()) == REQUEST_FAILURES_MAX + 1, "answers come first"
        assert line.is_closed()
