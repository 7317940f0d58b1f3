"""One connection to a server, for tests that ask in the plainest way."""

from collections.abc import Iterator
from itertools import count
from socket import create_connection
from typing import Self

from protocol.frame import RemotingCommand, encode
from protocol.message import MessageRecord, decode_records
from protocol.stream import CommandStream
from tests.support.brokers import pull_command

TIMEOUT_S = 30.0


class Wire:
    """Asks one question at a time."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = create_connection((host, int(port)), TIMEOUT_S)
        self._buffer = CommandStream()
        self._opaques = count(1)
        self._answers: Iterator[RemotingCommand] = iter(())

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """Raises ConnectionError when the server goes away instead of answering."""
        command.opaque = next(self._opaques)
        self._socket.sendall(encode(command))
        while True:
            for answer in self._answers:
                if answer.is_response and answer.opaque == command.opaque:
                    return answer
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._answers = self._buffer.receive(data)

    def messages(self, topic: str, queue_id: int) -> list[MessageRecord]:
        """Everything that lies in a queue, in order."""
        found: list[MessageRecord] = []
        offset = 0
        while True:
            answer = self.ask(pull_command(offset, topic=topic, queue_id=queue_id))
            if answer.code != 0:
                return found
            assert answer.body is not None and answer.fields is not None
            found += decode_records(bytes(answer.body))
            offset = int(answer.fields["nextBeginOffset"])

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
