"""Tests of actors/naming/namesrv_client.py: blocking calls over a real socket."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from socket import create_server, socket
from threading import Event, Thread

import pytest

from actors.naming.namesrv_client import NamesrvClient, NamesrvUnreachable
from protocol.command import RemotingCommand
from protocol.frame import encode
from protocol.stream import CommandStream

Serve = Callable[[socket], None]


@contextmanager
def server(*connections: Serve) -> Iterator[str]:
    """Serves each connection in turn with the next function, then closes it."""
    with create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            for handle in connections:
                accepted, _ = listener.accept()
                with accepted:
                    accepted.settimeout(10)
                    handle(accepted)

        thread = Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive()


def requests_on(accepted: socket) -> Iterator[RemotingCommand]:
    frames = CommandStream()
    while data := accepted.recv(65536):
        yield from frames.receive(data)


def answers(count: int) -> Serve:
    def serve(accepted: socket) -> None:
        for number, request in enumerate(requests_on(accepted), 1):
            accepted.sendall(encode(request.answer(remark=f"{request.code}")))
            if number == count:
                return

    return serve


@contextmanager
def client(address: str) -> Iterator[NamesrvClient]:
    made = NamesrvClient(address)
    try:
        yield made
    finally:
        made.close()


def test_a_call_is_answered_and_the_connection_kept() -> None:
    with server(answers(2)) as address, client(address) as namesrv:
        assert namesrv.call(RemotingCommand(105), 5).remark == "105"
        assert namesrv.call(RemotingCommand(103), 5).remark == "103"


def test_a_call_opens_another_connection_when_the_last_is_gone() -> None:
    with server(answers(1), answers(1)) as address, client(address) as namesrv:
        assert namesrv.call(RemotingCommand(105), 5).remark == "105"
        assert namesrv.call(RemotingCommand(103), 5).remark == "103"


def test_the_answer_to_an_earlier_call_is_not_taken_for_the_next() -> None:
    def late(accepted: socket) -> None:
        waiting = requests_on(accepted)
        first, second = next(waiting), next(waiting)
        accepted.sendall(encode(first.answer(remark="late")))
        accepted.sendall(encode(second.answer(remark="right")))

    with server(late) as address, client(address) as namesrv:
        namesrv.tell(RemotingCommand(103), 5)
        assert namesrv.call(RemotingCommand(105), 5).remark == "right"


def test_a_one_way_request_carries_its_flag_and_is_not_answered() -> None:
    got: SimpleQueue[RemotingCommand] = SimpleQueue()

    def take_one(accepted: socket) -> None:
        got.put(next(requests_on(accepted)))

    with server(take_one) as address, client(address) as namesrv:
        namesrv.tell(RemotingCommand(103, {"a": "b"}, b"body"), 5)
        request = got.get(timeout=10)
    assert (request.code, request.is_oneway, request.body) == (103, True, b"body")


def test_no_answer_in_time_is_an_error_and_ends_the_connection() -> None:
    def listen_only(accepted: socket) -> None:
        while accepted.recv(65536):
            pass

    with (
        server(listen_only) as address,
        client(address) as namesrv,
        pytest.raises(NamesrvUnreachable, match="no answer in time"),
    ):
        namesrv.call(RemotingCommand(105), 0.05)


def test_whether_the_other_end_has_closed_can_be_seen_without_a_call() -> None:
    ends, ended = Event(), Event()

    def answer_and_close(accepted: socket) -> None:
        accepted.recv(65536)
        ends.wait(5)
        accepted.close()
        ended.set()

    with server(answer_and_close) as address, client(address) as namesrv:
        assert not namesrv.is_connected()
        namesrv.tell(RemotingCommand(105), 1)
        assert namesrv.is_connected()
        ends.set()
        assert ended.wait(5)
        assert not namesrv.is_connected(), "over loopback the end is here at once"


def test_nobody_there_is_an_error_in_words() -> None:
    with create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with client(f"127.0.0.1:{port}") as namesrv:
        with pytest.raises(NamesrvUnreachable, match=r"^Connection refused$"):
            namesrv.call(RemotingCommand(105), 1)
        with pytest.raises(NamesrvUnreachable, match=r"^Connection refused$"):
            namesrv.tell(RemotingCommand(105), 1)


def test_something_that_is_no_name_server_is_an_error() -> None:
    def babble(accepted: socket) -> None:
        accepted.recv(65536)
        accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with (
        server(babble) as address,
        client(address) as namesrv,
        pytest.raises(NamesrvUnreachable),
    ):
        namesrv.call(RemotingCommand(105), 5)
