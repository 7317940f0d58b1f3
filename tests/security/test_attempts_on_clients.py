"""Attempts of a hostile broker or name server on the Python client and the commands: A49."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import create_server, socket
from struct import pack
from threading import Thread

import pytest

from protocol.command import RemotingCommand
from protocol.frame import FRAME_BYTES_MAX, encode
from protocol.stream import CommandStream
from troupemq import Admin, ClientError

Answer = Callable[[RemotingCommand], bytes]
WAIT_S = 20.0


@contextmanager
def hostile(answer: Answer) -> Iterator[str]:
    """Listens, and answers every request with these bytes."""
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
                        line.sendall(answer(command))
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


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_a49_a_hostile_name_server_is_an_error_in_time(answer: Answer) -> None:
    with hostile(answer) as address, Admin(address) as admin, pytest.raises(ClientError):
        admin.queues("Topic")


def test_a49_an_answer_to_another_question_is_none() -> None:
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
