"""One blocking connection: answers, refusals, and servers that break off."""

from collections.abc import Iterator
from gc import collect
from socket import create_server
from ssl import SSLContext

import pytest

from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.frame import FRAME_BYTES_MAX, encode
from remoting.line import ConnectionBroken, Line, NoAnswer, Refused
from remoting.tls_options import Tls
from tests.troupemq.fake_server import WAIT_S, FakeServer

CODE = RequestCode.GET_MAX_OFFSET


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def line(server: FakeServer) -> Iterator[Line]:
    with Line(server.address, timeout_ms=5000) as line:
        yield line


def request() -> RemotingCommand:
    return RemotingCommand(CODE, {})


def test_an_answer_belongs_to_its_own_request(server: FakeServer, line: Line) -> None:
    def answer(command: RemotingCommand) -> bytes:
        """After a late answer to another one, and a request of the server's."""
        late = command.answer(fields={"offset": "1"})
        late.opaque += 100
        news = RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {}, opaque=command.opaque)
        return encode(late) + encode(news) + encode(command.answer(fields={"offset": "2"}))

    server.on(CODE, answer)
    assert [line.ask(request()).fields for _ in range(2)] == [{"offset": "2"}] * 2
    assert server.connected.qsize() == 1


def test_a_refusal_has_its_code_and_remark(server: FakeServer, line: Line) -> None:
    server.on(CODE, lambda command: command.answer(17, remark="no such topic"))
    with pytest.raises(Refused, match="answered TOPIC_NOT_EXIST: no such topic") as refused:
        line.ask(request())
    assert (refused.value.code, refused.value.remark) == (17, "no such topic")
    assert str(refused.value).startswith(server.address)
    assert line.call(request()).code == 17


def test_a_broken_connection_is_opened_once_more_for_what_may_be_repeated(
    server: FakeServer, line: Line
) -> None:
    server.succeed(CODE, offset="3")
    line.ask(request())
    server.cut()
    assert line.ask(request(), repeats=True).fields == {"offset": "3"}
    assert server.connected.qsize() == 2


def test_an_answer_that_does_not_come_is_not_waited_for_any_longer(server: FakeServer) -> None:
    with Line(server.address, timeout_ms=50) as line, pytest.raises(NoAnswer, match="in 50 ms"):
        line.ask(request(), repeats=True)
    server.received.get(timeout=WAIT_S)
    assert server.received.empty()


def test_what_must_not_be_repeated_is_sent_once(server: FakeServer, line: Line) -> None:
    server.succeed(CODE)
    line.ask(request())
    server.cut()
    with pytest.raises(ConnectionBroken, match=f"^{server.address}: "):
        line.ask(request())
    assert line.ask(request()).code == 0


def test_a_server_that_always_breaks_off_in_the_middle_is_told_with_its_address(
    server: FakeServer, line: Line
) -> None:
    def breaks_off(command: RemotingCommand) -> None:
        server.push(encode(command.answer(body=b"never whole"))[:-5])
        server.cut()

    server.on(CODE, breaks_off)
    with pytest.raises(ConnectionBroken, match=f"^{server.address}: "):
        line.ask(request(), repeats=True)
    assert server.received.qsize() == 2


@pytest.mark.parametrize("has_answered", [False, True])
def test_who_is_cut_off_before_any_answer_hears_of_tls(
    server: FakeServer, line: Line, has_answered: bool
) -> None:
    """A server that takes TLS only can say nothing else to who speaks plainly."""
    if has_answered:
        server.succeed(CODE)
        line.ask(request())
    server.on(CODE, lambda command: server.cut())
    with pytest.raises(ConnectionBroken) as broken:
        line.ask(request())
    hint = "; if it takes TLS only: TROUPEMQ_TLS=true"
    assert str(broken.value).endswith(hint) is not has_answered


def test_a_connection_that_gets_no_tls_is_closed_whatever_the_reason(server: FakeServer) -> None:
    class Gone(Tls):
        def context(self) -> SSLContext:
            raise OSError("the files are gone")

    with Line(server.address, tls=Gone()) as line, pytest.raises(ConnectionBroken, match="gone"):
        line.ask(request())
    collect()  # a socket that nobody closed would be told of here, as an error


def test_a_frame_that_is_too_long_ends_the_connection(server: FakeServer, line: Line) -> None:
    server.on(CODE, lambda command: (FRAME_BYTES_MAX + 1).to_bytes(4) + bytes(20))
    with pytest.raises(ConnectionBroken, match="at most 16777216"):
        line.ask(request())


def test_nobody_at_the_address_is_told_with_it() -> None:
    with create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with Line(address) as line, pytest.raises(ConnectionBroken, match=f"{address}: .*refused"):
        line.ask(request(), repeats=True)
