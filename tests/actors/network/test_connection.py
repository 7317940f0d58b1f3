"""Tests of actors/network/connection.py: frames in pieces, closings, limits."""

from collections.abc import Callable, Iterator
from random import Random
from struct import pack
from threading import Thread

import pytest
from structlog.testing import capture_logs

from actors.broker_server import RunningBroker
from actors.engine.actor import Actor, handles
from actors.namesrv_server import RunningNamesrv
from actors.network import connection as connection_module
from actors.network.messages import Sends, failure
from protocol.codes import RequestCode, ResponseCode, SerializeType
from protocol.frame import FRAME_BYTES_MAX, ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from protocol.headers.client import QueueHeader
from protocol.message import decode_records
from tests.support.brokers import SimulatedBroker, pull_command, send_command
from tests.support.sockets import (
    WAIT_S,
    Line,
    connection_of,
    frames_of,
    paired_lines,
    serving_broker,
    serving_namesrv,
)

QUEUES = 4
BODY_BYTES_MAX = 4 << 20
UNSENT_MAX_BYTES = 256 << 10
ANSWER_BYTES_MAX = 300 << 10  # one pull's records, with their frame


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with serving_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNamesrv]:
    with serving_namesrv(tmp_path_factory.mktemp("namesrv")) as running:
        yield running


@pytest.fixture
def line(broker: RunningBroker) -> Iterator[Line]:
    with Line.to(broker.ports.main) as line:
        yield line


def question(topic: str = "Topic", queue_id: int = 0) -> RemotingCommand:
    """Something small that is answered at once."""
    return RemotingCommand(RequestCode.GET_MAX_OFFSET, QueueHeader(topic, queue_id).encode())


def stored_bodies(line: Line, topic: str, queue_id: int = 0) -> list[bytes]:
    """The bodies in a queue, in order."""
    bodies: list[bytes] = []
    offset = 0
    while (answer := line.ask(pull_command(offset, topic=topic, queue_id=queue_id))).code == 0:
        assert answer.body is not None and answer.fields is not None
        bodies += [record.body for record in decode_records(bytes(answer.body))]
        offset = int(answer.fields["nextBeginOffset"])
    return bodies


# --- pieces


def test_half_a_frame_waits_for_its_other_half(broker: RunningBroker, line: Line) -> None:
    frame = frames_of([question()])
    for cut in (3, 7, 8, 30, len(frame) - 1):
        line.send_bytes(frame[:cut])
        with Line.to(broker.ports.main) as other:  # answered: so the half has been read
            assert other.ask(question()).code == ResponseCode.SUCCESS
        line.send_bytes(frame[cut:])
        assert line.receive()[0].code == ResponseCode.SUCCESS


def test_a_frame_may_come_byte_by_byte(line: Line) -> None:
    send = send_command(b"byte by byte", topic="Bytes")
    for byte in frames_of([send, question("Bytes")]):
        line.send_bytes(bytes((byte,)))
    answers = line.receive(2)
    assert [answer.code for answer in answers] == [0, 0]
    assert stored_bodies(line, "Bytes") == [b"byte by byte"]


def test_many_frames_in_one_read_are_all_answered_and_stored_in_order(line: Line) -> None:
    line.ask(send_command(b"makes the topic", topic="Many", queue_id=1))
    bodies = [b"%d" % number for number in range(300)]
    sends = [send_command(body, topic="Many", queue_id=0) for body in bodies]
    questions = [question("Other") for _ in range(300)]
    mixed = [command for pair in zip(sends, questions, strict=True) for command in pair]
    opaques = line.send(*mixed)
    answers = line.receive(len(mixed))
    assert sorted(answer.opaque for answer in answers) == opaques
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert stored_bodies(line, "Many") == bodies


def test_a_body_of_4_mib_travels_both_ways(line: Line) -> None:
    body = Random(1).randbytes(BODY_BYTES_MAX)
    assert line.ask(send_command(body, topic="Large")).code == ResponseCode.SUCCESS
    assert stored_bodies(line, "Large") == [body]
    refused = line.ask(send_command(body + b"!", topic="Large"))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert stored_bodies(line, "Large") == [body]


def test_either_header_is_answered_in_its_own_kind(line: Line) -> None:
    for kind in SerializeType:
        send = send_command(b"kind", topic="Kinds")
        asked = question("Kinds")
        send.serialize_type = asked.serialize_type = kind
        for command in (send, asked):
            answer = line.ask(command)
            assert (answer.code, answer.serialize_type) == (ResponseCode.SUCCESS, kind)
    assert stored_bodies(line, "Kinds") == [b"kind"] * len(SerializeType)


# --- what closes a connection

GOOD = frames_of([question()])
BROKEN = {
    "longer than 16 MiB": pack(">iI", FRAME_BYTES_MAX - 3, 10) + b"x" * 100,
    "of a negative length": pack(">iI", -1, 10) + b"x" * 100,
    "of the most negative length": pack(">iI", -(1 << 31), 10) + b"x" * 100,
    "too short for its mark": pack(">iI", 3, 0),
    "with a header longer than itself": pack(">iI", 20, 17) + b"x" * 100,
    "with an empty header": pack(">iI", 4, 0),
    "of an unknown serialisation": pack(">iI", 6, 7 << 24 | 2) + b"{}",
    "with broken JSON": pack(">iI", 9, 5) + b'{"cod',
    "with JSON that is no object": pack(">iI", 7, 3) + b"[1]",
    "with a code that is no number": pack(">iI", 18, 14) + b'{"code":"abc"}',
    "with a broken binary header": pack(">iI", 9, 1 << 24 | 5) + b"\0\1\2\3\4",
    "behind a good one": GOOD + pack(">iI", -5, 1),
    "of another protocol": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_an_invalid_frame_length_closes_only_its_connection(
    broker: RunningBroker, line: Line, data: bytes
) -> None:
    with capture_logs() as logs, Line.to(broker.ports.main) as bad:
        remote = bad.local
        bad.send_bytes(data)
        bad.rest()  # the end of the stream, not silence
        assert line.ask(question()).code == ResponseCode.SUCCESS
    lines = [entry for entry in logs if entry.get("peer") == remote]
    assert [entry["event"] for entry in lines] == ["connection closed"]
    assert lines[0]["reason"].startswith("bad frame: ")


def test_the_largest_frame_is_accepted(line: Line) -> None:
    """16 MiB with its length field; its message is too large, which is said politely."""
    command = send_command(topic="Topic")
    command.body = b"x"
    spare = FRAME_BYTES_MAX - len(frames_of([command])) + 1
    command.body = bytes(spare)
    frame = frames_of([command])
    assert len(frame) == FRAME_BYTES_MAX
    line.send_bytes(frame)
    assert line.receive()[0].code == ResponseCode.MESSAGE_ILLEGAL


def test_no_frame_content_makes_the_connection_actor_fail() -> None:
    """Damaged frames are answered or close their connection; an actor never fails on one."""
    random = Random(5)
    frames = [frames_of([command]) for command in (send_command(), pull_command(), question())]
    for kind in (1, 0):
        binary = send_command()
        binary.serialize_type = kind
        frames.append(frames_of([binary]))
    made = SimulatedBroker(5)
    made.make_topic()
    with capture_logs() as logs, paired_lines(made, lines=250) as lines:
        for line in lines:
            damaged = bytearray(random.choice(frames))
            for _ in range(random.randrange(1, 4)):
                damaged[random.randrange(8, len(damaged))] = random.randrange(256)
            line.send_bytes(bytes(damaged))
        assert made.ask(question()).code == ResponseCode.SUCCESS
    assert [
        entry for entry in logs if entry["event"] in ("actor failed", "request handler failed")
    ] == []


# --- codes


def test_a_broker_answers_an_unknown_code_with_3(broker: RunningBroker, line: Line) -> None:
    for command in (RemotingCommand(9999), RemotingCommand(220, {"topic": "Topic"})):
        answer = line.ask(command)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == f" request type {command.code} not supported"
        assert answer.fields is None
    line.send(RemotingCommand(9999, flag=ONEWAY_FLAG))
    assert line.ask(question()).code == ResponseCode.SUCCESS


def test_a_name_server_does_not_answer_an_unknown_code(namesrv: RunningNamesrv) -> None:
    known = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Nobody"})
    with Line.to(namesrv.port) as line:
        sent = line.send(RemotingCommand(9999), send_command(), known)
        (answer,) = line.receive()
        assert (answer.opaque, answer.code) == (sent[-1], ResponseCode.TOPIC_NOT_EXIST)


def without(command: RemotingCommand, name: str) -> RemotingCommand:
    assert command.fields is not None
    del command.fields[name]
    return command


INCOMPLETE: dict[str, Callable[[], RemotingCommand]] = {
    "send without its topic": lambda: without(send_command(), "b"),
    "send without its queue": lambda: without(send_command(), "e"),
    "pull without its group": lambda: without(pull_command(), "consumerGroup"),
    "pull without its offset": lambda: without(pull_command(), "queueOffset"),
    "question without its queue": lambda: without(question(), "queueId"),
    "question without any field": lambda: RemotingCommand(RequestCode.GET_MIN_OFFSET),
    "heartbeat without a body": lambda: RemotingCommand(RequestCode.HEART_BEAT),
}


@pytest.mark.parametrize("make", INCOMPLETE.values(), ids=INCOMPLETE.keys())
@pytest.mark.parametrize("kind", SerializeType)
def test_a_request_without_a_required_field_is_answered_with_1(
    line: Line, make: Callable[[], RemotingCommand], kind: int
) -> None:
    command = make()
    command.serialize_type = kind
    answer = line.ask(command)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


def test_an_answer_without_a_request_is_dropped(line: Line) -> None:
    line.send(RemotingCommand(0, flag=RESPONSE_FLAG), RemotingCommand(310, flag=RESPONSE_FLAG))
    assert line.ask(question()).code == ResponseCode.SUCCESS


# --- what holds a connection back


def test_a_slow_reader_gets_all_answers_in_bounded_memory(
    broker: RunningBroker, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "UNSENT_BYTES_MAX", UNSENT_MAX_BYTES)
    bodies = [bytes((number,)) * 60_000 for number in range(8)]
    sent = [send_command(body, topic="Slow", queue_id=0) for body in bodies]
    assert {line.ask(command).code for command in sent} == {ResponseCode.SUCCESS}
    with Line.to(broker.ports.main, receive_bytes=4096) as slow:
        opaques: list[int] = []
        most_bytes = 0
        slow.ask(question())
        connection = connection_of(broker.system, slow)
        for number in range(60):
            opaques += slow.send(pull_command(4 * (number % 2), topic="Slow"))
            line.ask(question())
            most_bytes = max(most_bytes, connection.unsent_bytes)
        assert UNSENT_MAX_BYTES < most_bytes <= UNSENT_MAX_BYTES + ANSWER_BYTES_MAX
        answers = slow.receive(len(opaques))
        line.ask(question())
        assert connection.unsent_bytes == 0
    assert [answer.opaque for answer in answers] == opaques
    for number, answer in enumerate(answers):
        found = [record.body for record in decode_records(bytes(answer.body or b""))]
        assert found == (bodies[4:] if number % 2 else bodies[:4])


class SlowPut(Actor):
    """Takes sends and answers them when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Sends] = []

    @handles(Sends)
    def on_sends(self, message: Sends) -> None:
        message.owed = len(message.sends)
        self.taken.append(message)

    def answer(self) -> None:
        for message in self.taken:
            for send in message.sends:
                message.done(failure(send, remark="late"))
            message.hand_over()
        self.taken.clear()


def test_nothing_is_read_while_too_much_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "IN_FLIGHT_BYTES_MAX", 10_000)
    slow_put = SlowPut()
    others = {"put_message": lambda _: slow_put, "sink": lambda _: Actor()}
    made = SimulatedBroker(3, instead=others)
    with paired_lines(made, lines=2) as (line, other):
        line.send(*[send_command(bytes(4_000)) for _ in range(3)])
        connection = connection_of(made.system, line)
        assert connection.in_flight_bytes > 10_000
        (asked,) = line.send(question())  # stays in the socket
        line.wind()
        assert not line.receive_now()
        other.send(question())
        assert len(other.receive_now()) == 1
        slow_put.answer()
        made.system.drain()
        line.wind()
        *late, last = line.receive_now()
        assert ([answer.remark for answer in late], last.remark) == (["late"] * 3, None)
        assert last.opaque == asked
        assert connection.in_flight_bytes == 0


def test_one_way_sends_leave_the_in_flight_count() -> None:
    made = SimulatedBroker(3)
    made.make_topic()
    with paired_lines(made, lines=1) as (line,):
        line.send(*[send_command(oneway=True) for _ in range(20)], send_command())
        assert len(line.receive_now()) == 1
        assert connection_of(made.system, line).in_flight_bytes == 0
        assert len(made.messages()) == 21


def test_nothing_is_read_while_too_much_is_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "UNSENT_BYTES_MAX", 100_000)
    made = SimulatedBroker(4)
    made.make_topic()
    for _ in range(8):
        made.send(bytes(6_000))
    with paired_lines(made, lines=2) as (line, other):
        pulls = 0
        connection = connection_of(made.system, line)
        while connection.unsent_bytes <= 100_000:
            line.send(pull_command())
            pulls += 1
        (asked,) = line.send(question())
        unsent_bytes = connection.unsent_bytes
        line.wind()
        assert connection.unsent_bytes == unsent_bytes
        other.send(question())
        assert len(other.receive_now()) == 1
        answers = line.receive_now()
        assert len(answers) == pulls + 1
        assert answers[-1].opaque == asked
        assert connection.unsent_bytes == 0


# --- ends


def test_a_peer_that_disconnects_during_an_answer_affects_no_other() -> None:
    made = SimulatedBroker(6)
    made.make_topic()
    for _ in range(8):
        made.send(bytes(6_000))
    with paired_lines(made, lines=2) as (line, other):
        connection = connection_of(made.system, line)
        while not connection.unsent_bytes:
            line.send(pull_command())
        with capture_logs() as logs:
            line.close()
            line.wind()
            made.system.drain()
        closed = [entry for entry in logs if entry["event"] == "connection closed"]
        assert [entry["peer"] for entry in closed] == [line.local]
        assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []
        assert connection.unsent_bytes == 0
        other.send(pull_command())
        assert other.receive_now()[0].code == ResponseCode.SUCCESS


def test_a_stop_sends_pending_answers_and_answers_held_pulls(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with serving_broker(tmp_path_factory.mktemp("stop")) as running:
        port = running.ports.main
        with Line.to(port) as holder, Line.to(port, receive_bytes=4096) as slow:
            for number in range(8):
                holder.ask(send_command(bytes((number,)) * 60_000, queue_id=0))
            holder.send(pull_command(8, hold_ms=60_000))
            pulls = slow.send(*[pull_command() for _ in range(20)])
            sends = holder.send(*[send_command(b"last", queue_id=1) for _ in range(200)])
            answers = holder.receive(len(sends))
            assert {answer.opaque for answer in answers} == {*sends}
            got: list[RemotingCommand] = []
            reader = Thread(target=lambda: got.extend(slow.rest()))
            reader.start()
            assert running.stop(WAIT_S)
            (held,) = holder.rest()
            reader.join(WAIT_S)
        assert (held.code, held.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
        assert [answer.opaque for answer in got] == pulls[: len(got)]
        assert {answer.code for answer in got} == {ResponseCode.SUCCESS}
        assert len(got) == len(pulls)  # their request was read before the sends of the other
