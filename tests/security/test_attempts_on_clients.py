"""Attempts of a hostile broker or name server on the Python client and the commands: A49.

Those on consumers: test_attempts_on_consumers.py.
"""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from socket import create_server, socket
from struct import pack
from threading import Thread
from time import monotonic, process_time
from zlib import Z_FULL_FLUSH, compressobj

import pytest
from click.testing import CliRunner

from protocol.codes import COMPRESSED
from protocol.codes import RequestCode as Code
from protocol.compression import DECOMPRESSED_BYTES_MAX
from protocol.frame import FRAME_BYTES_MAX, RemotingCommand, encode
from protocol.headers.client import PullMessageResponseHeader
from protocol.message import MessageRecord, encode_record
from protocol.stream import CommandStream
from tests.troupemq.client.cluster import SEND, sends
from tests.troupemq.fake_server import FakeServer, serve_routes
from troupemq import (
    Admin,
    BadAnswer,
    ClientError,
    ConnectionFailed,
    Message,
    Producer,
    ProducerSettings,
)
from troupemq.cli.admin import admin
from troupemq.client.admin import base as asking
from troupemq.client.admin.base import SILENT_S
from troupemq.client.connection import route
from troupemq.client.errors import RequestTimeout

Answer = Callable[[RemotingCommand], bytes]
WAIT_S = 20.0
WRONG_S = 1.0
"""An answer that is wrong is one at once: of processor time, for this machine may be busy."""

SHORT_MS = 200
HELD_BYTES_MAX = 2 << 20
"""Memory that a flood may take: a read of 256 KiB, its decoded form, and the client's other work.
"""

FLOOD_BYTES = 16 << 20
UNUSABLE = (ConnectionFailed, BadAnswer)


@contextmanager
def hostile(answer: Answer, flood: memoryview | None = None) -> Iterator[str]:
    """Listens, and answers every request with these bytes, behind the flood."""
    with create_server(("127.0.0.1", 0)) as listening:
        lines: list[socket] = []

        def serve() -> None:
            while True:
                try:
                    line, _ = listening.accept()
                except OSError:
                    return
                lines.append(line)
                Thread(target=talk, args=(line,), daemon=True).start()

        def talk(line: socket) -> None:
            frames = CommandStream()
            try:
                while data := line.recv(1 << 16):
                    for command in frames.receive(data):
                        said = answer(command)
                        if flood is not None:
                            line.sendall(flood)
                        line.sendall(said)
            except OSError:
                return

        thread = Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(2)
            for line in lines:
                line.close()
            thread.join(WAIT_S)


def endless_route(address: str) -> bytes:
    """A route whose broker is the hostile one again."""
    return (
        b'{"brokerDatas":[{"brokerAddrs":{0:"%b"},"brokerName":"b","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,'
        b'"topicSynFlag":0,"writeQueueNums":4}]}' % address.encode()
    )


ANSWERS: dict[str, Answer] = {
    "a length of 2 GiB": lambda _: pack(">iI", (1 << 31) - 1, 10),
    "a negative length": lambda _: pack(">iI", -5, 10),
    "over 16 MiB": lambda _: pack(">iI", FRAME_BYTES_MAX, 10) + bytes(1000),
    "no frame": lambda _: b"HTTP/1.1 200 OK\r\n\r\n" * 10,
    "a deep body": lambda command: encode(command.answer(body=b'{"a":' + b"[" * 100_000)),
    "no JSON": lambda command: encode(command.answer(body=b"\xff" * 1000)),
    "a deep header": lambda _: pack(">iI", 100_004, 100_000) + b"[" * 100_000,
}


def flood(count: int, body_bytes: int) -> bytes:
    """Send answers to other requests."""
    other = RemotingCommand(0, opaque=1_000_000).answer(body=bytes(body_bytes))
    return encode(other) * count


FLOODS = {
    "long answers to others": flood(FLOOD_BYTES >> 16, 1 << 16),
    "short answers to others": flood(10_000, 10),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_a49_a_hostile_name_server_is_an_error_in_time(answer: Answer) -> None:
    with hostile(answer) as address, Admin(address) as admin:
        began_s, worked_s = monotonic(), process_time()
        with pytest.raises(ClientError) as error:
            admin.queues("Topic")
        assert process_time() - worked_s < WRONG_S
        assert monotonic() - began_s < route.LOOK_UP_TIMEOUT_MS / 1000, "it need not time out"
    assert not isinstance(error.value, RequestTimeout)


def test_a49_a_silent_name_server_is_an_error_by_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route, "LOOK_UP_TIMEOUT_MS", SHORT_MS)
    with hostile(lambda _: b"") as address, Admin(address) as admin:
        began_s = monotonic()
        with pytest.raises(RequestTimeout, match="did not answer in time"):
            admin.queues("Topic")
        assert SHORT_MS / 1000 <= monotonic() - began_s < WAIT_S


@pytest.mark.parametrize("answers", FLOODS.values(), ids=FLOODS.keys())
def test_a49_a_flood_of_foreign_answers_is_not_buffered(
    answers: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right one comes behind it: all of it has been read by then."""
    remark = "No topic route info in name server for the topic: Topic"
    monkeypatch.setattr(route, "LOOK_UP_TIMEOUT_MS", WAIT_S * 1000)
    tracemalloc.start()
    try:

        def behind(command: RemotingCommand) -> bytes:
            tracemalloc.reset_peak()
            return encode(command.answer(17, remark=remark))

        with hostile(behind, memoryview(answers)) as address, Admin(address) as admin:
            before, _ = tracemalloc.get_traced_memory()
            with pytest.raises(ClientError, match="does not know the topic Topic"):
                admin.queues("Topic")
            _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most - before < HELD_BYTES_MAX


def test_a49_a_route_of_billions_of_queues_is_an_error() -> None:
    """Each queue is an object of the client's, and two numbers claim them."""

    def answer(command: RemotingCommand) -> bytes:
        many = endless_route("127.0.0.1:1").replace(b'Nums":4', b'Nums":2147483647')
        return encode(command.answer(body=many))

    with hostile(answer) as address, Admin(address) as admin:
        worked_s = process_time()
        with pytest.raises(BadAnswer, match="a route of 4294967294 queues"):
            admin.queues("Topic")
        assert process_time() - worked_s < WRONG_S


def test_a49_an_answer_to_another_request_is_ignored() -> None:
    def wrong(command: RemotingCommand) -> bytes:
        answer = command.answer(body=endless_route("127.0.0.1:1"))
        answer.opaque = command.opaque + 1000
        return encode(answer)

    def both(command: RemotingCommand) -> bytes:
        right = command.answer(17, remark="No topic route info in name server for the topic: Topic")
        return wrong(command) * 50 + encode(right)

    with hostile(both) as address, Admin(address) as admin, pytest.raises(ClientError) as error:
        admin.queues("Topic")
    assert "Topic" in str(error.value)


# --- a hostile broker


@pytest.fixture
def broker() -> Iterator[FakeServer]:
    """Serve as a broker that is its own name server, so that its routes lead to itself."""
    with FakeServer() as server:
        serve_routes(server, {"hostile": server}, {"Topic": 1})
        server.succeed(Code.HEART_BEAT)
        server.succeed(Code.UNREGISTER_CLIENT)
        yield server


def test_a49_a_silent_broker_is_an_error_by_the_timeout(broker: FakeServer) -> None:
    broker.on(SEND, lambda _: None)
    settings = ProducerSettings(retries=0, send_timeout_ms=SHORT_MS)
    with Producer("shop", broker.address, settings=settings) as producer:
        began_s = monotonic()
        with pytest.raises(RequestTimeout):
            producer.send(Message("Topic", b"body"))
        assert SHORT_MS / 1000 <= monotonic() - began_s < WAIT_S


@pytest.mark.parametrize(("silent_s", "asked"), [(inf, 1), (SILENT_S, 2)])
def test_a49_a_silent_broker_is_asked_once_and_then_rarely(
    broker: FakeServer, monkeypatch: pytest.MonkeyPatch, silent_s: float, asked: int
) -> None:
    """With eight such brokers `statsAll` started again with each of 200 topics, after 20 s."""
    heard: list[RemotingCommand] = []
    broker.on(Code.GET_BROKER_RUNTIME_INFO, heard.append)
    now_s = [0.0]
    monkeypatch.setattr(asking, "monotonic", lambda: now_s[0])
    with Admin(broker.address, silent_s=silent_s) as session:
        for now_s[0] in (0, SILENT_S - 1, SILENT_S + 1, 2 * SILENT_S):
            with pytest.raises(RequestTimeout):
                session.ask(broker.address, Code.GET_BROKER_RUNTIME_INFO, timeout_ms=SHORT_MS)
    assert len(heard) == asked


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_a49_a_hostile_broker_is_an_error_of_the_send(answer: Answer, broker: FakeServer) -> None:
    broker.on(SEND, answer)
    settings = ProducerSettings(retries=0)
    began_s = monotonic()
    with Producer("shop", broker.address, settings=settings) as producer, pytest.raises(UNUSABLE):
        producer.send(Message("Topic", b"body"))
    assert monotonic() - began_s < settings.send_timeout_ms / 1000, "it need not time out for that"


def test_a49_a_broker_that_redirects_to_itself_is_tried_three_times(
    broker: FakeServer,
) -> None:
    broker.on(SEND, lambda command: command.answer(17, remark="not here, ask for a route"))
    with Producer("shop", broker.address) as producer, pytest.raises(ClientError):
        producer.send(Message("Topic", b"body"))
    assert sends(broker) == 3


def bomb() -> bytes:
    """Return a body that decompresses to more than any limit."""
    packer, block = compressobj(1), bytes(1 << 20)
    first, next_one = (packer.compress(block) + packer.flush(Z_FULL_FLUSH) for _ in range(2))
    return first + next_one * (DECOMPRESSED_BYTES_MAX // len(block))


def test_a49_a_decompression_bomb_is_a_one_sentence_error(broker: FakeServer) -> None:
    record = encode_record(MessageRecord("Topic", bomb(), sys_flag=COMPRESSED))
    header = PullMessageResponseHeader(0, 1, 0, 1).encode()
    nobody = b'{"groupList":[]}'
    broker.on(Code.QUERY_TOPIC_CONSUME_BY_WHO, lambda command: command.answer(body=nobody))
    broker.on(Code.PULL_MESSAGE, lambda command: command.answer(0, header, body=record))
    words = ["queryMsgByOffset", "-n", broker.address, "-t", "Topic", "-b", "hostile"]
    done = CliRunner().invoke(admin, [*words, "-i", "0", "-o", "0"])
    assert done.exit_code == 1
    assert done.stderr.startswith("troupemq: ") and "longer than 67108864 bytes" in done.stderr
