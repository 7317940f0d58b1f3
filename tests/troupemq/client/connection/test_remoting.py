"""One connection per address, answers to their callers, and an end to all waiting."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from socket import AF_INET, IPPROTO_TCP, TCP_USER_TIMEOUT, create_server, gaierror
from threading import Event, Thread
from typing import Any

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand, encode
from tests.support.processes import told_by_child
from tests.troupemq.fake_server import WAIT_S, FakeServer, dead_machine
from troupemq.client.connection.connection import expect_signs_of_life
from troupemq.client.connection.remoting import OnRequest, Remoting
from troupemq.client.errors import (
    BrokerError,
    ClientBusy,
    ClientClosed,
    ConnectionFailed,
    RequestTimeout,
)

LONG_MS = WAIT_S * 1000
CODE = RequestCode.GET_MAX_OFFSET


@contextmanager
def client(on_request: OnRequest = lambda address, command: None) -> Iterator[Remoting]:
    remoting = Remoting(on_request)
    try:
        yield remoting
    finally:
        remoting.close()


def request() -> RemotingCommand:
    return RemotingCommand(CODE, {"topic": "T"})


def test_answers_reach_their_callers_in_any_order() -> None:
    with FakeServer() as server, client() as remoting:
        first = remoting.call_async(server.address, request(), LONG_MS)
        second = remoting.call_async(server.address, request(), LONG_MS)
        commands = [server.next(), server.next()]
        for command in reversed(commands):
            server.push(command.answer(remark=str(command.opaque)))
        assert first.result(WAIT_S).remark == str(commands[0].opaque)
        assert second.result(WAIT_S).remark == str(commands[1].opaque)
        assert server.connected.qsize() == 1


def test_a_peer_without_a_sign_of_life_is_lost_after_two_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[int] = []

    def expect(sock: Any) -> None:
        expect_signs_of_life(sock)
        found.append(sock.getsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT))

    monkeypatch.setattr("troupemq.client.connection.connection.expect_signs_of_life", expect)
    with FakeServer() as server, client() as remoting:
        server.succeed(CODE, offset="7")
        remoting.call(server.address, request(), LONG_MS)
    assert found == [120_000]


def test_a_request_without_an_answer_times_out_and_a_late_answer_is_ignored() -> None:
    with FakeServer() as server, client() as remoting:
        with pytest.raises(RequestTimeout, match="did not answer in time"):
            remoting.call(server.address, request(), 30)
        server.push(server.next().answer(remark="late"))
        server.succeed(CODE, offset="7")
        assert remoting.call(server.address, request(), LONG_MS).fields == {"offset": "7"}


def test_an_answer_in_single_bytes_is_decoded() -> None:
    with FakeServer() as server, client() as remoting:
        answer = remoting.call_async(server.address, request(), LONG_MS)
        for byte in encode(server.next().answer(remark="slow", body=b"body")):
            server.push(bytes((byte,)))
        assert answer.result(WAIT_S).body == b"body"


def test_a_connection_lost_in_the_middle_of_an_answer_fails_the_request() -> None:
    with FakeServer() as server, client() as remoting:
        answer = remoting.call_async(server.address, request(), LONG_MS)
        server.push(encode(server.next().answer(body=b"never whole"))[:-3])
        server.cut()
        with pytest.raises(ConnectionFailed, match="closed the connection"):
            answer.result(WAIT_S)


@pytest.mark.parametrize("has_answered", [False, True])
def test_a_connection_cut_before_any_answer_fails_with_a_hint_at_tls(has_answered: bool) -> None:
    """A server that accepts only TLS can give a plain client no other hint."""
    with FakeServer() as server, client() as remoting:
        if has_answered:
            first = remoting.call_async(server.address, request(), LONG_MS)
            server.push(encode(server.next().answer()))
            first.result(WAIT_S)
        answer = remoting.call_async(server.address, request(), LONG_MS)
        server.next()
        server.cut()
        error = answer.exception(WAIT_S)
    assert isinstance(error, ConnectionFailed)
    assert ("; if it takes TLS only: TROUPEMQ_TLS=true, or --tls" in str(error)) is not has_answered


def test_each_request_of_a_lost_connection_gets_its_own_error() -> None:
    with FakeServer() as server, client() as remoting:
        answers = [remoting.call_async(server.address, request(), LONG_MS) for _ in range(2)]
        for _ in answers:
            server.next()
        server.cut()
        first, second = (answer.exception(WAIT_S) for answer in answers)
    assert first is not second
    assert str(first) == str(second) and isinstance(first, ConnectionFailed)


def test_the_call_after_a_lost_connection_opens_another() -> None:
    with FakeServer() as server, client() as remoting:
        answer = remoting.call_async(server.address, request(), LONG_MS)
        server.next()
        server.cut()
        assert isinstance(answer.exception(WAIT_S), ConnectionFailed)
        server.succeed(CODE)
        assert remoting.call(server.address, request(), LONG_MS).code == ResponseCode.SUCCESS
        assert server.connected.qsize() == 2


def test_an_invalid_frame_ends_the_connection() -> None:
    with FakeServer() as server, client() as remoting:
        answer = remoting.call_async(server.address, request(), LONG_MS)
        server.next()
        server.push(b"\xff\xff\xff\xff lies")
        with pytest.raises(ConnectionFailed, match="broken frame"):
            answer.result(WAIT_S)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"HTTP/1.1 400 Bad Request", "it speaks another protocol, .* begins with 'HTTP'"),
        (b"SSH-2.0-OpenSSH_9.2", "it speaks another protocol, .* begins with 'SSH-'"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "before it answered anything; if it takes TLS only"),
    ],
)
def test_a_port_of_another_service_was_told_as_a_frame_of_1213486164_bytes(
    said: bytes, told: str
) -> None:
    with FakeServer() as server, client() as remoting:
        answer = remoting.call_async(server.address, request(), LONG_MS)
        server.next()
        server.push(said)
        server.cut()
        with pytest.raises(ConnectionFailed, match=told) as error:
            answer.result(WAIT_S)
        assert str(error.value).count(server.address) == 1


def test_a_refused_connection_fails_at_once() -> None:
    with create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with client() as remoting, pytest.raises(ConnectionFailed, match="connection refused"):
        remoting.call(address, request(), LONG_MS)


@pytest.mark.parametrize("address", ["nowhere", "host:port", ":1", ""])
def test_an_invalid_address_is_named(address: str) -> None:
    with client() as remoting, pytest.raises(ConnectionFailed, match="host:port"):
        remoting.call(address, request(), LONG_MS)


def test_ask_turns_a_refusal_into_an_error_with_its_code_and_remark() -> None:
    with FakeServer() as server, client() as remoting:
        server.on(CODE, lambda command: command.answer(ResponseCode.NO_PERMISSION, remark="no"))
        with pytest.raises(BrokerError, match="NO_PERMISSION: no") as caught:
            remoting.ask(server.address, request(), LONG_MS)
        assert (caught.value.code, caught.value.remark) == (ResponseCode.NO_PERMISSION, "no")


def test_a_request_of_the_server_with_a_pending_opaque_is_not_taken_for_the_answer() -> None:
    seen: SimpleQueue[RemotingCommand] = SimpleQueue()

    def serve(address: str, command: RemotingCommand) -> RemotingCommand:
        seen.put(command)
        return command.answer(ResponseCode.SYSTEM_ERROR, remark="ours")

    with FakeServer() as server, client(serve) as remoting:
        answer = remoting.call_async(server.address, request(), LONG_MS)
        asked = server.next()
        server.push(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, opaque=asked.opaque))
        assert seen.get(timeout=WAIT_S).code == RequestCode.GET_CONSUMER_RUNNING_INFO
        reply = server.next()
        assert reply.is_response and reply.remark == "ours"
        server.push(asked.answer(remark="theirs"))
        assert answer.result(WAIT_S).remark == "theirs"


def test_a_oneway_request_of_the_server_gets_no_answer() -> None:
    def serve(address: str, command: RemotingCommand) -> RemotingCommand:
        return command.answer()

    with FakeServer() as server, client(serve) as remoting:
        server.succeed(CODE)
        remoting.call(server.address, request(), LONG_MS)
        server.next()
        server.push(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, flag=2))
        remoting.call(server.address, request(), LONG_MS)
        assert server.next().code == CODE


def test_a_large_request_to_a_slow_reader_arrives_whole() -> None:
    may_read = Event()
    body = bytes(8 << 20)
    with FakeServer() as server, client() as remoting:
        server.on(RequestCode.HEART_BEAT, lambda command: _wait_then_answer(may_read, command))
        server.on(CODE, lambda command: command.answer(remark=str(len(command.body or b""))))
        held = remoting.call_async(server.address, RemotingCommand(34), LONG_MS)
        large = RemotingCommand(CODE, body=body)
        answer = remoting.call_async(server.address, large, LONG_MS)
        may_read.set()
        assert held.result(WAIT_S).code == ResponseCode.SUCCESS
        assert answer.result(WAIT_S).remark == str(len(body))


def _wait_then_answer(event: Event, command: RemotingCommand) -> RemotingCommand:
    assert event.wait(WAIT_S)
    return command.answer()


def test_unsent_bytes_are_bounded_by_refusing_requests() -> None:
    may_read = Event()
    with FakeServer() as server, client() as remoting:
        server.on(RequestCode.HEART_BEAT, lambda command: _wait_then_answer(may_read, command))
        remoting.call_async(server.address, RemotingCommand(34), LONG_MS)
        body = bytes(15 << 20)
        answers = [
            remoting.call_async(server.address, RemotingCommand(CODE, body=body), LONG_MS)
            for _ in range(6)
        ]
        assert isinstance(answers[-1].exception(WAIT_S), ClientBusy)
        may_read.set()


def test_closing_ends_pending_calls() -> None:
    with FakeServer() as server, client() as remoting:
        answer = remoting.call_async(server.address, request(), LONG_MS)
        server.next()
        remoting.close()
        assert isinstance(answer.exception(WAIT_S), ClientClosed)
        with pytest.raises(ClientClosed):
            remoting.oneway(server.address, request())


def test_an_earlier_timer_wakes_the_thread() -> None:
    fired = Event()
    with FakeServer() as server, client() as remoting:
        server.succeed(CODE)
        remoting.call(server.address, request(), LONG_MS)
        remoting.later(20, fired.set)
        assert fired.wait(WAIT_S)


def test_requests_of_many_threads_arrive_complete_in_each_threads_order() -> None:
    """Some go out on their own thread, some with others on the I/O thread, some in two parts."""
    with FakeServer() as server, client() as remoting:
        server.succeed(CODE)

        def ask(name: str) -> None:
            commands = [RemotingCommand(CODE, {"n": name}, bytes(20_000)) for _ in range(200)]
            for number, command in enumerate(commands):
                command.remark = str(number)
            answers = [remoting.call_async(server.address, each, LONG_MS) for each in commands]
            assert all(answer.result(WAIT_S).code == 0 for answer in answers)

        threads = [Thread(target=ask, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        received = [server.received.get_nowait() for _ in range(800)]
    for name in "abcd":
        own = [each.remark for each in received if each.fields == {"n": name}]
        assert own == [str(number) for number in range(200)]
    assert {len(each.body or b"") for each in received} == {20_000}


def test_later_requests_do_not_overtake_unsent_bytes() -> None:
    with FakeServer() as server, client() as remoting:
        server.succeed(CODE)
        remoting.call(server.address, request(), LONG_MS)
        long = RemotingCommand(CODE, {"n": "long"}, bytes(12 << 20))
        answers = [remoting.call_async(server.address, each, LONG_MS) for each in (long, request())]
        assert [answer.result(WAIT_S).code for answer in answers] == [0, 0]


def test_delayed_work_is_executed_at_the_close() -> None:
    told: list[str] = []
    with FakeServer() as server, client() as remoting:
        server.succeed(CODE)
        remoting.call(server.address, request(), LONG_MS)
        remoting.later(LONG_MS, lambda: told.append("waited"))
    remoting.later(LONG_MS, lambda: told.append("came too late"))
    assert told == ["waited", "came too late"]


def test_a_connection_starts_with_its_greeting() -> None:
    greeting = RemotingCommand(RequestCode.HEART_BEAT, remark="hello")
    with FakeServer() as server:
        remoting = Remoting(lambda address, command: None, lambda address: greeting)
        server.succeed(CODE)
        remoting.call(server.address, request(), LONG_MS)
        remoting.call(server.address, request(), LONG_MS)
        codes = [server.next().code for _ in range(3)]
        remoting.close()
    assert codes == [RequestCode.HEART_BEAT, CODE, CODE]


def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` is ::1 first on many machines, though most servers listen on IPv4 alone."""
    with FakeServer() as server, client() as remoting:
        server.succeed(CODE)
        port = int(server.address.rpartition(":")[2])
        unknown_family = 9999

        def found(host: str, _: int, *, type: int, flags: int = 0) -> list[Any]:
            if flags:
                raise gaierror(f"{host} is no number")
            first = (unknown_family, type, 0, "", ("127.0.0.1", port))
            return [first, *((AF_INET, type, 0, "", (f"127.0.0.{n}", port)) for n in (2, 1, 3))]

        monkeypatch.setattr("troupemq.client.connection.connection.getaddrinfo", found)
        answer = remoting.call(f"broker.example:{port}", request(), LONG_MS)
        assert answer.code == ResponseCode.SUCCESS
        server.close()
        with suppress(ConnectionFailed):  # which may be that of the old connection
            remoting.call(f"broker.example:{port}", request(), LONG_MS)
        with pytest.raises(ConnectionFailed, match="connection refused"):
            remoting.call(f"broker.example:{port}", request(), LONG_MS)


def test_the_address_of_a_dead_machine_does_not_hide_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packets to it have no answer, and each further connection began with it again."""
    monkeypatch.setattr("troupemq.client.connection.remoting.CONNECT_TIMEOUT_MS", 50)
    with FakeServer() as server, client() as remoting:
        server.succeed(CODE)
        port = int(server.address.rpartition(":")[2])

        def found(host: str, _: int, *, type: int, flags: int = 0) -> list[Any]:
            if flags:
                raise gaierror(f"{host} is no number")
            return [(AF_INET, type, 0, "", (f"127.0.0.{n}", port)) for n in (9, 1)]

        monkeypatch.setattr("troupemq.client.connection.connection.getaddrinfo", found)
        with dead_machine("127.0.0.9", port):
            answer = remoting.call(f"broker.example:{port}", request(), LONG_MS)
        assert answer.code == ResponseCode.SUCCESS


@pytest.mark.slow
def test_a_forked_process_is_told_to_make_a_client_of_its_own() -> None:
    """The child read that the client is stopped, which it had never been."""
    with FakeServer() as server, client() as remoting:
        server.succeed(CODE)
        assert remoting.call(server.address, request(), LONG_MS).code == 0

        def asked() -> str:
            with pytest.raises(ClientClosed) as refused:
                remoting.call(server.address, request(), LONG_MS)
            return str(refused.value)

        told = told_by_child(asked)
        assert told == "the client belongs to the process that was forked: make a new one"
