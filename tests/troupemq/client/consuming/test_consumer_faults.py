"""Brokers that die, come back, refuse and forget; and where a group begins."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, pairwise
from queue import Queue
from random import Random
from threading import Event, Lock
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.bodies import ConsumerList
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import PullMessageResponseHeader
from tests.compat.patience import wait_until
from tests.troupemq.client.consuming.test_consumer import (
    QUICK,
    Seen,
    consumer,
    fill,
    known_group,
    notify,
    topic_queues,
    wait_for_queues,
)
from tests.troupemq.fake_broker import TOPIC, FakeBroker
from tests.troupemq.fake_server import WAIT_S, FakeServer, serve_routes
from troupemq.client.connection.calls import Blocking, Call, Calls, Flow, LookUpRoute, drive
from troupemq.client.connection.route import Route
from troupemq.client.consuming import consumer_offsets
from troupemq.client.consuming.assignment import averagely
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import (
    ConsumeFrom,
    GroupOffsets,
    timestamp_ms,
    timestamp_text,
)
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.rebalance import Rebalancing
from troupemq.client.errors import RequestTimeout
from troupemq.client.message import MessageQueue, MessageView


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeServer() as namesrv, FakeServer() as server:
        yield FakeBroker(namesrv, server)


def reborn(broker: FakeBroker) -> FakeServer:
    """Restart the broker at its address, without knowledge of its clients."""
    broker.server.close()
    broker.members.clear()
    again = FakeServer(int(broker.server.address.rpartition(":")[2]))
    again.handlers = broker.server.handlers
    return again


def test_consumption_continues_after_a_broker_restart(broker: FakeBroker) -> None:
    bodies, seen = fill(broker, 4), Seen()
    with consumer(broker, seen) as member:
        assert seen.take(4) == bodies
        with reborn(broker):
            broker.add(0, b"after")
            assert seen.take(1) == [b"after"]
            broker.wait_committed("g", 0, 3)
            assert broker.members["g"] == [member.client_id]
    assert seen.bodies.empty()


@contextmanager
def settled_member(broker: FakeBroker) -> Iterator[PushConsumer]:
    """Run a member that has consumed all, and takes queues of others after a minute."""
    bodies, seen = fill(broker, 4), Seen()
    settings = replace(QUICK, settle_ms=60_000)
    made = PushConsumer("g", seen, broker.namesrv.address, settings=settings)
    made.subscribe(TOPIC)
    with made:
        assert seen.take(4) == bodies
        yield made


def test_members_that_have_not_returned_to_a_restarted_broker_keep_their_queues(
    broker: FakeBroker,
) -> None:
    """The first one to return got all queues, and what the others had not committed again."""
    with settled_member(broker) as made:
        broker.members["g"].append("other")
        wait_for_queues(broker, made, 1)
        with reborn(broker) as again:
            for _ in range(6):  # a rebalance asks once for each topic
                again.next(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
            assert broker.members["g"] == [made.client_id]
            assert len(topic_queues(made)) == 1


def test_a_member_keeps_its_queues_until_all_have_returned_to_a_restarted_broker(
    broker: FakeBroker,
) -> None:
    """With the shares of those that were back it gave some away, and paused them for seconds."""
    with settled_member(broker) as made, reborn(broker) as again:
        broker.members["g"].append("0ther")
        for _ in range(6):
            again.next(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        assert len(topic_queues(made)) == 2


def test_a_topic_that_is_subscribed_again_at_once_is_consumed_further(broker: FakeBroker) -> None:
    """An answer that came in between ended the pulls of its queue, which no rebalance released."""
    bodies, seen = fill(broker, 2), Seen()
    pull = broker.server.handlers[RequestCode.PULL_MESSAGE]
    beat = broker.server.handlers[RequestCode.HEART_BEAT]
    leaves, returns = iter([True]), iter(list[bool]())

    def leave(command: RemotingCommand) -> RemotingCommand | bytes | None:
        nonlocal returns
        if command.fields["queueId"] == "0" and next(leaves, False):  # type: ignore[index]
            member.unsubscribe(TOPIC)
            returns = iter([True])
        return pull(command)

    def come_back(command: RemotingCommand) -> RemotingCommand | bytes | None:
        if next(returns, False):
            held = topic_queues(member)[0]
            own = member._rebalancing.own
            wait_until(lambda: not own[held].pull_is_under_way, "the answer")
            member.subscribe(TOPIC)
        return beat(command)

    broker.server.on(RequestCode.PULL_MESSAGE, leave)
    broker.server.on(RequestCode.HEART_BEAT, come_back)
    with consumer(broker, seen) as member:
        assert seen.take(2) == bodies


def test_a_long_pause_between_rounds_delays_no_shorter_one(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue locked by another member was tried again after 20 s: another queue waited 30 s."""
    pauses, rounds = iter([30_000.0, 10.0]), Queue[float | None]()

    def run(topics: Sequence[str]) -> Flow[float | None]:
        rounds.put(pause_ms := next(pauses, None))
        return pause_ms
        yield

    made = consumer(broker, Seen(), replace(QUICK, rebalance_interval_ms=3_600_000))
    monkeypatch.setattr(made._rebalancing, "run", run)
    with made:
        assert rounds.get(timeout=WAIT_S) == 30_000
        notify(broker)
        assert rounds.get(timeout=WAIT_S) == 10
        assert rounds.get(timeout=WAIT_S) is None


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SYSTEM_BUSY,
    ],
)
def test_a_refused_pull_is_retried(broker: FakeBroker, code: ResponseCode) -> None:
    bodies, seen = fill(broker, 2), Seen()
    pull = broker.server.handlers[RequestCode.PULL_MESSAGE]
    refusals = iter([True] * 3)

    def refuse(command: RemotingCommand) -> RemotingCommand | bytes | None:
        return command.answer(code, {}) if next(refusals, False) else pull(command)

    broker.server.on(RequestCode.PULL_MESSAGE, refuse)
    with consumer(broker, seen):
        assert seen.take(2) == bodies


def test_a_pull_that_a_slave_cannot_serve_is_repeated_after_a_pause(broker: FakeBroker) -> None:
    """With the master down: fewer messages were copied than consumed (alibaba/rocketmq #395)."""
    asked_s: Queue[float] = Queue()

    def elsewhere(command: RemotingCommand) -> RemotingCommand:
        fields = command.fields or {}
        if fields["queueId"] == "0":
            asked_s.put(monotonic())
        offsets = {"nextBeginOffset": fields["queueOffset"], "minOffset": "0", "maxOffset": "0"}
        answer = {"suggestWhichBrokerId": "0", **offsets}
        return command.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, answer)

    broker.server.on(RequestCode.PULL_MESSAGE, elsewhere)
    with consumer(broker, Seen()):
        times_s = [asked_s.get(timeout=WAIT_S) for _ in range(10)]
    assert times_s[-1] - times_s[0] > 0.04


def test_a_group_can_start_at_a_time(broker: FakeBroker) -> None:
    for number in range(6):
        broker.add(0, b"%d" % number)
    broker.server.succeed(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, offset="4")
    seen = Seen()
    made = PushConsumer(
        "g",
        seen,
        broker.namesrv.address,
        begin=ConsumeFrom.TIMESTAMP,
        begin_ms=4711,
        settings=QUICK,
    )
    made.subscribe(TOPIC)
    broker.committed["g", 1] = 0
    with made:
        assert seen.take(2) == [b"4", b"5"]
        asked = broker.server.next(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    assert (asked.fields or {})["timestamp"] == "4711"


@pytest.mark.parametrize("begin", [ConsumeFrom.LAST_OFFSET, ConsumeFrom.FIRST_OFFSET])
def test_no_queue_begins_at_a_slave_that_lacks_its_offset(
    broker: FakeBroker, begin: ConsumeFrom
) -> None:
    """A member that started while the master was down skipped all that the slave had."""
    fill(broker, 4)
    del broker.committed["g", 1]
    serve_routes(broker.namesrv, {"b": broker.server}, {TOPIC: 2}, broker_id=1)
    asked, seen = Event(), Seen()
    query = broker.server.handlers[RequestCode.QUERY_CONSUMER_OFFSET]

    def answer(command: RemotingCommand) -> RemotingCommand | bytes | None:
        if command.fields is not None and command.fields["queueId"] == "1":
            asked.set()
        return query(command)

    broker.server.on(RequestCode.QUERY_CONSUMER_OFFSET, answer)
    with consumer(broker, seen, begin=begin):
        assert seen.take(2) == [b"000", b"002"], "the offset of this queue is known"
        for _ in range(2):
            asked.clear()
            assert asked.wait(WAIT_S)
        assert ("g", 1) not in broker.committed
        broker.committed["g", 1] = 0  # the master is back
        serve_routes(broker.namesrv, {"b": broker.server}, {TOPIC: 2})
        assert seen.take(2) == [b"001", b"003"]


def test_a_broker_that_leaves_the_route_gets_the_last_commits(broker: FakeBroker) -> None:
    """A name server that had restarted did not know it yet: its messages were consumed again."""
    bodies, seen = fill(broker, 8), Seen()
    with FakeServer() as other:
        known = {"b": broker.server, "other": other}
        serve_routes(broker.namesrv, known, {TOPIC: 2})
        for code in (RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP):
            other.on(code, broker.server.handlers[code])
        for code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET):
            other.on(code, lambda command: command.answer(fields={"offset": "0"}))
        other.on(RequestCode.UNREGISTER_CLIENT, lambda command: command.answer())
        slow = replace(QUICK, commit_interval_ms=60_000, rebalance_interval_ms=60_000)
        with consumer(broker, seen, slow) as made:
            assert seen.take(8) == bodies
            del known["b"]
            made._client.routes.refresh((TOPIC,))
            notify(broker)
            for queue_id in range(2):
                broker.wait_committed("g", queue_id, 4)


def test_the_last_commits_go_to_a_master_that_is_back() -> None:
    """A route up to 30 s old sent them to the slave, where those of the master replaced them."""
    known, wanted = dict[str, str](), list[object]()
    routes = SimpleNamespace(known_master=known.get, address=lambda name: known.get(name, "slave"))
    client: Any = SimpleNamespace(routes=routes)
    no_ends: Any = None

    def carry_out(each: Any) -> object:
        wanted.append(each)
        if isinstance(each, LookUpRoute):
            known["a"] = "master"
            return None
        assert {call.address for call in each.calls} <= {"master"}
        return [RemotingCommand(0)] * len(each.calls)

    offsets = {MessageQueue("T", "a", number): 1 for number in range(2)}
    assert drive(GroupOffsets(client, "g", no_ends).commit_last(offsets, 1.0), carry_out) == 2
    assert wanted[0] == LookUpRoute("T", again=True)


def test_start_times_have_the_java_clients_format() -> None:
    assert timestamp_text(timestamp_ms("20261121143005")) == "20261121143005"
    assert timestamp_text((1 << 63) - 1).startswith("9999123")
    assert timestamp_ms("20261121143005") - timestamp_ms("20261121143004") == 1000
    with pytest.raises(ValueError):
        timestamp_ms("2026-11-21")


def test_a_stop_finishes_current_messages_and_starts_no_others(broker: FakeBroker) -> None:
    fill(broker, 20)
    begun, may_end, calls = Event(), Event(), []

    def listen(views: Sequence[MessageView]) -> None:
        calls.append(views[0].queue_offset)
        begun.set()
        assert may_end.wait(WAIT_S)

    made = PushConsumer(
        "g", listen, broker.namesrv.address, settings=replace(QUICK, consume_threads=1)
    )
    made.subscribe(TOPIC)
    made.start()
    assert begun.wait(WAIT_S)
    made.finish()
    may_end.set()
    made.stop()
    assert len(calls) == 1
    assert broker.committed["g", 0] + broker.committed["g", 1] == 1


def leave(broker: FakeBroker, member: PushConsumer) -> None:
    """Stops it; a broker sees a closed connection too, though the goodbye was lost with a cut."""
    member.stop()
    if member.client_id in broker.members["g"]:
        broker.members["g"].remove(member.client_id)


@pytest.mark.trial(short=4, long=100)
def test_every_message_is_consumed_while_members_and_brokers_change(
    seed: int, broker: FakeBroker
) -> None:
    """Members join and leave, connections break, listeners fail, while messages come."""
    random = Random(seed)
    known_group(broker)
    lock, seen = Lock(), Counter[bytes]()
    every = [b"%d" % number for number in range(120)]
    last = Event()

    def listen(views: Sequence[MessageView]) -> None:
        with lock:
            if random.random() < 0.1:
                raise ValueError("not this time")
            seen.update(view.body for view in views)
            if len(seen) == len(every):
                last.set()

    broker.takes_back = False  # what fails is tried again here
    members: list[PushConsumer] = []
    try:
        for number, body in enumerate(every):
            broker.add(number % 2, body)
            if number % 10:
                continue
            step = random.choice(["join", "leave", "cut", "notify"])
            if step == "join" or not members:
                members.append(consumer(broker, listen))
                members[-1].start()
            elif step == "leave" and len(members) > 1:
                leave(broker, members.pop(random.randrange(len(members))))
            elif step == "cut":
                broker.server.cut()
            notify(broker)
        notify(broker)
        assert last.wait(WAIT_S), sorted(set(every) - set(seen))
        for queue_id, queue in enumerate(broker.queues):  # what comes twice then is consumed too
            broker.wait_committed("g", queue_id, len(queue))
    finally:
        for member in members:
            member.stop()


def test_a_lost_commit_is_repaired_by_the_next(broker: FakeBroker) -> None:
    bodies, seen = fill(broker, 4), Seen()
    with consumer(broker, seen):
        assert seen.take(4) == bodies
        broker.wait_committed("g", 0, 2)
        broker.committed["g", 0] = 1  # as if it had not arrived
        broker.wait_committed("g", 0, 2)


def test_the_last_commits_send_one_offset_per_topic_first() -> None:
    """4.9.7 loses one of a group's first commits of a topic when two of them come in at once."""
    routes = SimpleNamespace(
        address=lambda name: name, master=lambda name: name, known_master=lambda name: name
    )
    client: Any = SimpleNamespace(routes=routes)
    nobody: Any = None
    rounds: list[set[str]] = []

    def carry_out(wanted: Any) -> object:
        asked = [(call.command.fields, call.timeout_ms) for call in wanted.calls]
        assert all(0 < timeout_ms <= 1000 for _, timeout_ms in asked)
        told = {f"{each['topic']}/{each['queueId']}={each['commitOffset']}" for each, _ in asked}
        rounds.append(told)
        return [RemotingCommand(0)] * len(told)

    queues = [MessageQueue(topic, "a", number) for topic in "TU" for number in range(3)]
    offsets = {queue: 10 + number for number, queue in enumerate(queues)}
    drive(GroupOffsets(client, "g", nobody).commit_last(offsets, 1.0), carry_out)
    assert rounds == [{"T/2=12", "U/2=15"}, {"T/0=10", "T/1=11", "U/0=13", "U/1=14"}]


def test_many_commits_let_an_event_loop_run_other_tasks() -> None:
    """The commits of 4,000 queues stopped the loop for 46 ms, and at the stop for 117 ms."""
    count, oneway, wanted = 2 * consumer_offsets.COMMITS_OF_A_TURN + 1, list[str](), list[object]()
    remoting = SimpleNamespace(oneway=lambda address, command: oneway.append(address))
    routes = SimpleNamespace(
        address=lambda name: f"{name}:1",
        master=lambda name: f"{name}:1",
        known_master=lambda name: name,
    )
    client: Any = SimpleNamespace(routes=routes, remoting=remoting)
    no_ends: Any = None
    offsets = GroupOffsets(client, "g", no_ends)
    rebalancing = Rebalancing(client, "g", offsets, None, QUICK, lambda held: None)
    queues = [MessageQueue("T", "a", number) for number in range(count)]
    rebalancing._own = {queue: ProcessQueue(queue, 1) for queue in queues}

    def carry_out(each: Any) -> object:
        wanted.append(each)
        return each.work() if isinstance(each, Blocking) else [RemotingCommand(0)] * len(each.calls)

    drive(rebalancing.commit(), carry_out)
    assert [type(each) for each in wanted] == [Blocking, Blocking]
    assert len(oneway) == count
    wanted.clear()
    assert drive(offsets.commit_last(dict.fromkeys(queues, 1), 1.0), carry_out) == count
    assert [type(each) for each in wanted] == [Calls, Blocking, Blocking, Calls]


def test_queues_that_a_route_no_longer_has_are_forgotten() -> None:
    """Queues that were never taken stayed, for each route of a name server with other brokers."""
    members = RemotingCommand(0, body=ConsumerList(["me", "you"]).encode())
    client: Any = SimpleNamespace(id="me", routes=SimpleNamespace(address=str, master=str))
    no_offsets: Any = None
    settings = replace(QUICK, settle_ms=60_000)
    rebalancing = Rebalancing(client, "g", no_offsets, averagely, settings, lambda held: None)
    for number in range(5):
        queues = tuple(MessageQueue("T", f"b{number}", queue_id) for queue_id in range(4))
        answers = {LookUpRoute: Route(queues, queues, {}), Call: members}
        flow = rebalancing._run(("T",))
        with pytest.raises(StopIteration):
            wanted: object = next(flow)
            while True:
                wanted = flow.send(answers[type(wanted)])
    assert set(rebalancing._wanted_since_s) == set(queues[:2])


def test_silent_name_servers_take_one_timeout_of_a_round_without_a_master() -> None:
    """Heartbeats wait behind a round: with many topics the member would leave its group."""
    members = RemotingCommand(0, body=ConsumerList(["me"]).encode())
    client: Any = SimpleNamespace(id="me", routes=SimpleNamespace(address=str, master=str))
    asked: list[LookUpRoute] = []

    def carry_out(wanted: Any) -> object:
        if not isinstance(wanted, LookUpRoute):
            return members
        if wanted.again:
            asked.append(wanted)
            raise RequestTimeout("no answer")
        queues = (MessageQueue(wanted.topic, "b", 0),)
        return Route((), queues, {"b": {1: "slave:1"}})

    no_offsets: Any = None
    settings = replace(QUICK, settle_ms=60_000)
    rebalancing = Rebalancing(client, "g", no_offsets, averagely, settings, lambda held: None)
    rebalancing._own = {
        MessageQueue(each, "b", 0): ProcessQueue(MessageQueue(each, "b", 0), 0) for each in "TUV"
    }
    for rounds in (1, 2):
        assert drive(rebalancing._run("TUV"), carry_out) is None
        assert len(asked) == rounds


def test_a_silent_broker_takes_one_timeout_of_a_round(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its queues took 5 s: those of the next broker, and heartbeats, waited for them."""
    monkeypatch.setattr(consumer_offsets, "OFFSET_TIMEOUT_MS", 100)
    asks, waited = RequestCode.QUERY_CONSUMER_OFFSET, list[int]()
    query = broker.server.handlers[asks]
    with FakeServer() as silent:

        def answer(command: RemotingCommand) -> RemotingCommand | bytes | None:
            came = [silent.received.get() for _ in range(silent.received.qsize())]
            waited.append(sum(each.code == asks for each in came))
            return query(command)

        broker.server.on(asks, answer)
        serve_routes(broker.namesrv, {"a": silent, "b": broker.server}, {TOPIC: 2})
        for code in (RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP):
            silent.on(code, broker.server.handlers[code])
        bodies, seen = fill(broker, 4), Seen()
        with consumer(broker, seen):
            assert seen.take(4) == bodies
    assert waited[0] == 1


def change_answers(broker: FakeBroker, change: Callable[[RemotingCommand], None]) -> None:
    """Change the first four answers to pulls that have messages."""
    pull = broker.server.handlers[RequestCode.PULL_MESSAGE]
    faults = iter([True] * 4)

    def answer(command: RemotingCommand) -> RemotingCommand | bytes | None:
        response = pull(command)
        assert isinstance(response, RemotingCommand)
        if response.code == ResponseCode.SUCCESS and next(faults, False):
            change(response)
        return response

    broker.server.on(RequestCode.PULL_MESSAGE, answer)


@pytest.mark.parametrize("next_offset", [0, -1, 3])
def test_an_answer_that_leads_nowhere_is_a_failed_pull(
    broker: FakeBroker, next_offset: int
) -> None:
    """The messages came again without a pause, 9,640 calls in a second, or -1 was committed."""
    bodies, seen = fill(broker, 8), Seen()

    def change(response: RemotingCommand) -> None:
        assert response.fields is not None
        response.fields["nextBeginOffset"] = str(next_offset)

    change_answers(broker, change)
    with consumer(broker, seen):
        assert seen.take(8) == bodies
        broker.wait_committed("g", 0, 4)
    assert seen.bodies.empty()


def test_messages_out_of_order_are_a_failed_pull(broker: FakeBroker) -> None:
    """The offset of the first one was committed while those before it were not consumed."""
    bodies, seen = fill(broker, 8), Seen()

    def change(response: RemotingCommand) -> None:
        response.body = b"".join(reversed(broker.queues[0]))

    change_answers(broker, change)
    with consumer(broker, seen):
        assert seen.take(8) == bodies
    assert seen.bodies.empty()


def test_an_offset_that_moves_at_each_answer_is_pulled_after_pauses(broker: FakeBroker) -> None:
    """Two answers that name each other's offset were asked for 3,000 times in a second."""
    known_group(broker)
    answered_s: Queue[float] = Queue()
    offsets = cycle("12")

    def answer(command: RemotingCommand) -> RemotingCommand:
        answered_s.put(monotonic())
        fields = PullMessageResponseHeader(0, 0, 0, 9).encode()
        fields["nextBeginOffset"] = next(offsets)
        return command.answer(ResponseCode.PULL_OFFSET_MOVED, fields)

    broker.queues = [[]]
    serve_routes(broker.namesrv, {"b": broker.server}, {TOPIC: 1})
    broker.server.on(RequestCode.PULL_MESSAGE, answer)
    with consumer(broker, Seen(), replace(QUICK, pull_error_delay_ms=100)):
        times_s = [answered_s.get(timeout=WAIT_S) for _ in range(4)]
    assert all(later - before > 0.09 for before, later in pairwise(times_s[1:]))
