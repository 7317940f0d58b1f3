"""The blocking connection: answers, refusals, and servers that close it or send invalid data."""

from collections.abc import Iterator
from gc import collect
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, create_server, socket
from ssl import SSLContext, SSLSocket
from threading import Event, Thread

import pytest

from protocol.codes import RequestCode
from protocol.frame import FRAME_BYTES_MAX, RemotingCommand, encode
from protocol.stream import CommandStream
from remoting.sync_connection import (
    RECEIVE_BYTES,
    UNREAD_BYTES_MAX,
    ConnectionBroken,
    ConnectionLost,
    NoAnswer,
    Refused,
    SyncConnection,
)
from remoting.tls import server_context
from remoting.tls_options import Tls
from tests.support.certificates import Certificates
from tests.troupemq.fake_server import WAIT_S, FakeServer

CODE = RequestCode.GET_MAX_OFFSET


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def connection(server: FakeServer) -> Iterator[SyncConnection]:
    with SyncConnection(server.address, timeout_ms=5000) as connection:
        yield connection


def request() -> RemotingCommand:
    return RemotingCommand(CODE, {})


def test_an_answer_belongs_to_its_own_request(
    server: FakeServer, connection: SyncConnection
) -> None:
    def answer(command: RemotingCommand) -> bytes:
        """Return a late answer to another request, a request of the server, and the answer."""
        late = command.answer(fields={"offset": "1"})
        late.opaque += 100
        news = RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {}, opaque=command.opaque)
        return encode(late) + encode(news) + encode(command.answer(fields={"offset": "2"}))

    server.on(CODE, answer)
    assert [connection.ask(request()).fields for _ in range(2)] == [{"offset": "2"}] * 2
    assert server.connected.qsize() == 1


def test_a_refusal_has_its_code_and_remark(server: FakeServer, connection: SyncConnection) -> None:
    server.on(CODE, lambda command: command.answer(17, remark="no such topic"))
    with pytest.raises(Refused, match="answered TOPIC_NOT_EXIST: no such topic") as refused:
        connection.ask(request())
    assert (refused.value.code, refused.value.remark) == (17, "no such topic")
    assert str(refused.value).startswith(server.address)
    assert connection.call(request()).code == 17


def test_a_oneway_request_carries_its_flag_and_is_not_awaited(
    server: FakeServer, connection: SyncConnection
) -> None:
    connection.send(RemotingCommand(CODE, {"a": "b"}, b"body"))
    got = server.received.get(timeout=WAIT_S)
    assert (got.code, got.is_oneway, got.body) == (CODE, True, b"body")


def closes_once(server: FakeServer) -> None:
    """Make the server close the connection at the next request, and answer those after it."""

    def close(command: RemotingCommand) -> None:
        server.succeed(CODE, offset="3")
        server.cut()

    server.on(CODE, close)


def test_a_request_that_changes_nothing_is_repeated_after_a_lost_connection(
    server: FakeServer, connection: SyncConnection
) -> None:
    closes_once(server)
    assert connection.ask(request(), repeats=True).fields == {"offset": "3"}
    assert connection.connection_count == server.connected.qsize() == 2


def test_a_request_is_sent_once_unless_it_may_be_repeated(
    server: FakeServer, connection: SyncConnection
) -> None:
    closes_once(server)
    with pytest.raises(ConnectionBroken, match=f"^{server.address}: "):
        connection.ask(request())
    assert connection.ask(request()).code == 0


def test_a_request_for_a_replaced_connection_is_not_sent(
    server: FakeServer, connection: SyncConnection
) -> None:
    with pytest.raises(ConnectionLost, match="the connection was closed"):
        connection.call(request(), over=1)
    server.succeed(CODE)
    assert connection.call(request()).code == 0
    assert connection.call(request(), over=1).code == 0
    connection.close()
    with pytest.raises(ConnectionLost, match="the connection was closed"):
        connection.call(request(), repeats=True, over=1)
    assert server.received.qsize() == 2


def test_a_missing_answer_is_awaited_until_the_timeout(server: FakeServer) -> None:
    with SyncConnection(server.address, timeout_ms=50) as connection:
        with pytest.raises(NoAnswer, match="no answer in 50 ms"):
            connection.ask(request(), repeats=True)
        assert not connection.is_connected()
    server.received.get(timeout=WAIT_S)
    assert server.received.empty()


def test_a_cancelled_wait_ends_before_the_timeout(server: FakeServer) -> None:
    with (
        SyncConnection(server.address, is_cancelled=lambda: True) as connection,
        pytest.raises(NoAnswer),
    ):
        connection.ask(request())


def test_a_server_that_always_closes_in_the_middle_is_named_with_its_address(
    server: FakeServer, connection: SyncConnection
) -> None:
    def breaks_off(command: RemotingCommand) -> None:
        server.push(encode(command.answer(body=b"never whole"))[:-5])
        server.cut()

    server.on(CODE, breaks_off)
    with pytest.raises(ConnectionLost, match=f"^{server.address}: "):
        connection.ask(request(), repeats=True)
    assert server.received.qsize() == 2


@pytest.mark.parametrize("has_answered", [False, True])
def test_a_connection_closed_before_any_answer_hints_at_tls(
    server: FakeServer, connection: SyncConnection, has_answered: bool
) -> None:
    """A server that takes TLS only cannot say so on a plain connection."""
    if has_answered:
        server.succeed(CODE)
        connection.ask(request())
    server.on(CODE, lambda command: server.cut())
    with pytest.raises(ConnectionBroken) as broken:
        connection.ask(request())
    hint = "; if it takes TLS only: TROUPEMQ_TLS=true"
    assert str(broken.value).endswith(hint) is not has_answered


def test_a_connection_without_tls_context_is_closed(server: FakeServer) -> None:
    class Gone(Tls):
        def context(self) -> SSLContext:
            raise OSError("the files are gone")

    with (
        SyncConnection(server.address, tls=Gone()) as connection,
        pytest.raises(ConnectionBroken, match="gone"),
    ):
        connection.ask(request())
    collect()  # a socket left open would be reported here, as an error


def test_a_frame_that_is_too_long_ends_the_connection(
    server: FakeServer, connection: SyncConnection
) -> None:
    server.on(CODE, lambda command: (FRAME_BYTES_MAX + 1).to_bytes(4) + bytes(20))
    with pytest.raises(ConnectionBroken, match="at most 16777216"):
        connection.ask(request())


def test_a_server_that_speaks_another_protocol_is_an_error(
    server: FakeServer, connection: SyncConnection
) -> None:
    server.on(CODE, lambda command: b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ConnectionBroken, match=r"another protocol.* with .HTTP."):
        connection.call(request(), repeats=True)


def test_a_closed_connection_is_detected_without_a_request(
    server: FakeServer, connection: SyncConnection
) -> None:
    assert not connection.is_connected()
    server.succeed(CODE)
    connection.ask(request())
    assert connection.is_connected()
    server.cut()
    assert not connection.is_connected(), "over loopback the end is here at once"


def test_a_refused_connection_is_named_with_its_address() -> None:
    with create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with SyncConnection(address) as connection:
        with pytest.raises(ConnectionBroken, match=f"^{address}: Connection refused") as broken:
            connection.ask(request(), repeats=True)
        assert broken.value.reason.startswith("Connection refused")
        with pytest.raises(ConnectionBroken, match="refused"):
            connection.send(request())


# --- through TLS, which has no peek

NO_FRAME = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@pytest.mark.parametrize("way", ["is_connected", "send", "call"])
def test_invalid_data_over_tls_is_an_error_and_the_next_call_connects_again(
    way: str, tmp_path: Path
) -> None:
    made = Certificates(tmp_path)
    context, answered, sent = server_context(made.files()), Event(), Event()

    def serve(accepted: socket, is_first: bool) -> None:
        accepted.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # what is sent is there at once
        with context.wrap_socket(accepted, server_side=True) as wrapped:
            asked = next(iter(CommandStream().receive(wrapped.recv(65536))))
            wrapped.sendall(encode(asked.answer(remark="right")))
            if is_first:
                assert answered.wait(5)
                wrapped.sendall(NO_FRAME)
                sent.set()
                wrapped.recv(1)

    with create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve_both() -> None:
            for is_first in (True, False):
                accepted, _ = listener.accept()
                with accepted:
                    accepted.settimeout(10)
                    serve(accepted, is_first)

        thread = Thread(target=serve_both)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with SyncConnection(address, context=made.calls, timeout_ms=5000) as connection:
            assert connection.call(request()).remark == "right"
            answered.set()
            assert sent.wait(5)
            with pytest.raises(ConnectionBroken, match="a frame of -1 bytes"):
                if way == "is_connected":
                    connection.is_connected()
                else:
                    getattr(connection, way)(request())
            assert not connection.is_connected()
            assert connection.call(request()).remark == "right"
        thread.join(10)
        assert not thread.is_alive()


class Endless(SSLSocket):
    """A connection whose server never stops sending."""

    def __init__(self) -> None:
        self.taken_bytes = 0

    def setblocking(self, flag: bool) -> None:
        pass

    def close(self) -> None:
        pass

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        assert self.taken_bytes < 2 * UNREAD_BYTES_MAX, "it never ends"
        frame = encode(RemotingCommand(105, body=bytes(1000)))
        frames = frame * (buflen // len(frame))
        self.taken_bytes += len(frames)
        return frames


def test_a_server_that_never_stops_sending_does_not_block_a_call() -> None:
    with SyncConnection("127.0.0.1:1") as connection:
        connection._socket = endless = Endless()
        assert connection.is_connected()
        assert endless.taken_bytes <= UNREAD_BYTES_MAX + RECEIVE_BYTES
