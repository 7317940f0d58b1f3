"""A broker or name server of few lines: answers as a test tells it to, and remembers what came."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty, SimpleQueue
from socket import SHUT_RDWR, create_server, socket
from threading import Lock, Thread
from time import monotonic

from protocol.bodies import BrokerData, QueueData, TopicRouteData
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import ProtocolError
from protocol.frame import RemotingCommand, encode
from protocol.stream import CommandStream

WAIT_S = 10.0

Handler = Callable[[RemotingCommand], RemotingCommand | bytes | None]
"""Makes the answer: a command, raw bytes to send as they are, or None for silence."""


class FakeServer:
    """Listens on a port of the loopback, by default a free one; use it in a `with` block."""

    def __init__(self, port: int = 0) -> None:
        self.received: SimpleQueue[RemotingCommand] = SimpleQueue()
        self.connected: SimpleQueue[socket] = SimpleQueue()
        self.handlers: dict[int, Handler] = {}
        self._listener = create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket] = []
        self._threads: list[Thread] = []
        self._lock = Lock()
        self._accepting = Thread(target=self._accept, daemon=True)

    def __enter__(self) -> "FakeServer":
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening and closes every connection."""
        with suppress(OSError):
            self._listener.shutdown(SHUT_RDWR)
        self._accepting.join(WAIT_S)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(WAIT_S)

    def cut(self) -> None:
        """Closes the connections that there are; others may come."""
        with self._lock:
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(SHUT_RDWR)

    def on(self, code: RequestCode, handler: Handler) -> None:
        """Answers requests of this code; those without a handler stay unanswered."""
        self.handlers[code] = handler

    def succeed(self, code: RequestCode, **fields: str) -> None:
        """Answers this code with success."""
        self.on(code, lambda command: command.answer(ResponseCode.SUCCESS, dict(fields)))

    def next(self, code: int | None = None) -> RemotingCommand:
        """The next request that came, or the next one of this code."""
        deadline_s = monotonic() + WAIT_S
        while (left_s := deadline_s - monotonic()) > 0:
            try:
                command = self.received.get(timeout=left_s)
            except Empty:
                break
            if code in (None, command.code):
                return command
        raise AssertionError(f"no request {code!r} came")

    def push(self, data: RemotingCommand | bytes) -> None:
        """Sends something of our own over every connection."""
        with self._lock:
            for sock in self._sockets:
                with suppress(OSError):  # cut just now
                    sock.sendall(data if isinstance(data, bytes) else encode(data))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = Thread(target=self._serve, args=(sock,), daemon=True)
            with self._lock:
                self._sockets.append(sock)
                self._threads.append(thread)
            self.connected.put(sock)
            thread.start()

    def _serve(self, sock: socket) -> None:
        frames = CommandStream()
        with suppress(OSError, ProtocolError):
            while data := sock.recv(65536):
                for command in frames.receive(data):
                    self._take(sock, command)
        with self._lock:
            self._sockets.remove(sock)
        sock.close()

    def _take(self, sock: socket, command: RemotingCommand) -> None:
        self.received.put(command)
        handler = self.handlers.get(command.code)
        answer = handler(command) if handler is not None and not command.is_response else None
        if answer is not None and not command.is_oneway:
            with self._lock:
                sock.sendall(answer if isinstance(answer, bytes) else encode(answer))


def serve_routes(
    namesrv: FakeServer,
    brokers: dict[str, FakeServer],
    topics: dict[str, int],
    perm: int = 6,
    broker_id: int = 0,
) -> None:
    """Makes `namesrv` tell that each broker has each topic, with that many queues."""

    def answer(command: RemotingCommand) -> RemotingCommand:
        assert command.fields is not None
        topic = command.fields["topic"]
        if topic not in topics:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark="no route info")
        count = topics[topic]
        data = TopicRouteData(
            [QueueData(name, count, count, perm) for name in brokers],
            [
                BrokerData("c", name, {broker_id: server.address})
                for name, server in brokers.items()
            ],
        )
        return command.answer(body=data.encode(standard_json=True))

    namesrv.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, answer)


@contextmanager
def dead_machine(host: str, port: int) -> Iterator[None]:
    """Has connections to this address stay without an answer: its queue of new ones is full."""
    with ExitStack() as stack:
        stack.enter_context(create_server((host, port), backlog=0))
        for _ in range(4):
            sock = stack.enter_context(socket())
            sock.setblocking(False)
            sock.connect_ex((host, port))
        yield
