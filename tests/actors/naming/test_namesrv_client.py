"""Tests of actors/naming/namesrv_client.py: blocking calls over a real socket."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from socket import IPPROTO_TCP, TCP_NODELAY, create_server, socket
from ssl import SSLSocket
from threading import Event, Thread

import pytest

from actors.naming.namesrv_client import (
    LEFT_BYTES_MAX,
    RECEIVE_BYTES,
    NamesrvClient,
    NamesrvUnreachable,
)
from protocol.command import RemotingCommand
from protocol.frame import encode
from protocol.stream import CommandStream
from remoting.tls import server_context
from tests.support.certificates import Certificates

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


# --- through TLS, where there is no looking without reading

NO_FRAME = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@pytest.mark.parametrize("way", ["is_connected", "tell", "call"])
def test_what_is_no_frame_is_an_error_in_words_and_the_next_call_goes_through(
    way: str, tmp_path: Path
) -> None:
    made = Certificates(tmp_path)
    context, answered, sent = server_context(made.files()), Event(), Event()

    def serve(first: bool) -> Serve:
        def with_tls(accepted: socket) -> None:
            accepted.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # what is sent is there at once
            with context.wrap_socket(accepted, server_side=True) as wrapped:
                request = next(requests_on(wrapped))
                wrapped.sendall(encode(request.answer(remark="right")))
                if first:
                    assert answered.wait(5)
                    wrapped.sendall(NO_FRAME)
                    sent.set()
                    wrapped.recv(1)

        return with_tls

    with server(serve(True), serve(False)) as address:
        namesrv = NamesrvClient(address, tls=lambda: made.calls())
        assert namesrv.call(RemotingCommand(105), 5).remark == "right"
        answered.set()
        assert sent.wait(5)
        with pytest.raises(NamesrvUnreachable, match="a frame of -1 bytes"):
            if way == "is_connected":
                namesrv.is_connected()
            else:
                getattr(namesrv, way)(RemotingCommand(103), 5)
        assert not namesrv.is_connected()
        assert namesrv.call(RemotingCommand(105), 5).remark == "right"
        namesrv.close()


class Endless(SSLSocket):
    """Has always something more."""

    def __init__(self) -> None:
        self.taken_bytes = 0

    def setblocking(self, flag: bool) -> None:
        pass

    def close(self) -> None:
        pass

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        assert self.taken_bytes < 2 * LEFT_BYTES_MAX, "it never ends"
        frame = encode(RemotingCommand(105, body=bytes(1000)))
        frames = frame * (buflen // len(frame))
        self.taken_bytes += len(frames)
        return frames


def test_whoever_never_stops_sending_does_not_hold_us_up() -> None:
    with client("127.0.0.1:1") as namesrv:
        namesrv._socket = endless = Endless()
        assert namesrv.is_connected()
        assert endless.taken_bytes <= LEFT_BYTES_MAX + RECEIVE_BYTES
