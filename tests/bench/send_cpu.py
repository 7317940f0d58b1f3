"""Whole cost of a send for a broker: `python -m tests.bench.send_cpu [NAME=CHECKOUT …]`; a table.

Broker processes, one from each checkout (this one by default), get the same prepared frames over a
socket, in turn: a number of sends at a time, the next when all are answered. Other work on the
machine delays the rounds more than it changes processor times, so two versions can be compared
beside it. A single figure says little.

With `--sync-master` each broker has a simulated slave that confirms at once. With `--acl` each
checkout has a second broker with access control and signed frames. With `--tls` one gets the frames
through TLS, each in its own record, as the official client sends them. With `--batch N` each send
is a batch of N messages, of equal length with `--even`. With `--delayed` each is due a second
later, and its delivery is included. With `--topics N` single sends go to N topics in turn, which
the first sends create. With `--receivers N` each checkout has a second broker, at which N members
of a group wait in receives of another topic. The figures are those of tests/bench/in_turn.py.
"""

from contextlib import suppress
from json import loads
from pathlib import Path
from select import EPOLLIN, epoll
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection, socket
from ssl import MemoryBIO, SSLWantReadError
from statistics import median
from threading import Thread
from time import perf_counter

from protocol.batch import BatchMessage, encode_batch
from protocol.codes import LanguageCode, RequestCode, ResponseCode, SerializeType
from protocol.frame import RemotingCommand, decode_frame, encode
from protocol.ha import TransferBuffer, encode_report
from protocol.headers.send import SendMessageHeader
from protocol.signature import Credentials
from remoting.tls_options import Tls
from tests.bench.in_turn import Build, broker_of, compare, parser_of
from tests.bench.process_figures import scheduled_us
from tests.compat.patience import wait_until
from tests.support.receiving import receive_command
from tests.support.signing import java_signed

HOST = "127.0.0.1"
DISTINCT = 8_000
"""Frames made beforehand; then they come again."""

TOPIC = "BenchmarkTest"
"""Every broker has it, with 1,024 queues."""

WARM_UP = 16_000
ACCOUNT = Credentials("bench-account", "secret-of-the-bench")
ACCOUNTS = f"""
accounts:
- {{accessKey: {ACCOUNT.access_key}, secretKey: {ACCOUNT.secret_key},
   topicPerms: [{TOPIC}=PUB|SUB]}}
"""
SIGNED = "-acl"
"""Behind the name of a broker with access control."""
TLS = "-tls"
"""Suffix of a broker that is reached through TLS."""

RECEIVING = "-receiving"
"""Suffix of a broker at which members wait in receives."""
IDLE_TOPIC = "SELF_TEST_TOPIC"
"""Empty topic that every broker has."""

READ_BYTES = 256 << 10
DELAYED, DELAY_S = "\x02DELAY\x011", 1.1
LOOK_S, IDLE_SHARE = 0.2, 0.03
"""Interval and share of a processor below which a broker has delivered everything."""


def _properties(number: int, in_a_ms: int = 50) -> str:
    born_ms = 1_700_000_000_000 + number // in_a_ms
    return (
        f"UNIQ_KEY\x01C0A80102279300000000946E{born_ms & 0xFFFFFFFF:08X}{number:04X}\x02"
        "WAIT\x01true\x02TAGS\x01TagA"
    )


def batch_frames(
    queues: int, kind: SerializeType, size: int, *, is_even: bool = False
) -> list[bytes]:
    """Return batches as the Java client encodes them in one ms: 128-byte bodies on average."""
    frames = []
    for number in range(DISTINCT // size):
        inside = [
            BatchMessage(
                b"x" * (128 if is_even else 112 + each % 33),
                _properties(number * size + each, size).encode(),
            )
            for each in range(size)
        ]
        header = SendMessageHeader(
            "group", TOPIC, "TBW102", queues, number % queues, 0, 1_700_000_000_000, 0,
            "WAIT\x01true", 0, batch=True,
        )  # fmt: skip
        command = RemotingCommand(
            RequestCode.SEND_BATCH_MESSAGE,
            header.encode_v2(),
            encode_batch(inside),
            opaque=number,
            language=LanguageCode.JAVA,
            version=399,
            serialize_type=kind,
        )
        frames.append(encode(command))
    return frames


def send_frames(
    queues: int,
    kind: SerializeType,
    count: int = DISTINCT,
    account: Credentials | None = None,
    topic: str = TOPIC,
    more: str = "",
    topics: int = 1,
) -> list[bytes]:
    """Return frames as the Java client encodes them: 128-byte bodies, a unique key and a tag;
    signed on request. Several topics in turn have names that begin with the given one.
    """
    frames = []
    names = [topic] if topics == 1 else [f"{topic}-{each}" for each in range(topics)]
    for number in range(max(count, topics)):
        born_ms = 1_700_000_000_000 + number // 50
        properties = _properties(number) + more
        queue_id = number // topics % queues
        header = SendMessageHeader(
            "group", names[number % topics], "TBW102", queues, queue_id, 0, born_ms, 0,
            properties, 0,
        )  # fmt: skip
        command = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2,
            header.encode_v2(),
            b"x" * 128,
            opaque=number,
            language=LanguageCode.JAVA,
            version=399,
            serialize_type=kind,
        )
        frames.append(encode(command) if account is None else java_signed(command, account))
    return frames


class Records:
    """A connection through TLS that writes one record for each frame."""

    def __init__(self, plain: socket) -> None:
        self._plain = plain
        self._incoming, self._outgoing = MemoryBIO(), MemoryBIO()
        context = Tls(checks_server=False).context()
        self._end = context.wrap_bio(self._incoming, self._outgoing)
        while True:
            try:
                self._end.do_handshake()
            except SSLWantReadError:
                plain.sendall(self._outgoing.read())
                self._incoming.write(plain.recv(READ_BYTES))
            else:
                plain.sendall(self._outgoing.read())
                return

    def send(self, frames: list[bytes]) -> None:
        """All of them with one call, as they come from many threads."""
        for frame in frames:
            self._end.write(frame)
        self._plain.sendall(self._outgoing.read())

    def sendall(self, data: bytes) -> None:
        """In one record, or as few as it takes."""
        self.send([data])

    def recv(self, size_bytes: int) -> bytes:
        """Return the available bytes; none at the end."""
        while True:
            try:
                return self._end.read(size_bytes)
            except SSLWantReadError:
                data = self._plain.recv(size_bytes)
                if not data:
                    return b""
                self._incoming.write(data)

    def close(self) -> None:
        self._plain.close()


def _play_slave(port: int) -> None:
    """Begins anywhere, and has at once whatever comes."""
    transfers, end = TransferBuffer(), 0
    with create_connection((HOST, port)) as link:
        link.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        link.sendall(encode_report(0))
        while data := link.recv(READ_BYTES):
            for offset, body in transfers.receive(data):
                end = offset + len(body)
            link.sendall(encode_report(end))


class WaitingReceivers:
    """Members of a group that wait for messages that do not come; a thread asks again for each."""

    def __init__(self, port: int, count: int) -> None:
        """Connect, and return when all are asking."""
        command = receive_command(group="waiting", topic=IDLE_TOPIC, wait_ms=30_000, hold=True)
        self._frame, self._poll = encode(command), epoll()
        self._sockets = {}
        for _ in range(count):
            sock = create_connection((HOST, port))
            self._sockets[sock.fileno()] = sock
            self._poll.register(sock, EPOLLIN)
            sock.sendall(self._frame)
        Thread(target=self._ask_again, daemon=True).start()

    def _ask_again(self) -> None:
        with suppress(OSError):  # the broker has stopped
            while True:
                for fd, _ in self._poll.poll():
                    answer = self._sockets[fd].recv(READ_BYTES)
                    code = decode_frame(answer[4:]).code
                    assert code == ResponseCode.POLLING_TIMEOUT, code
                    self._sockets[fd].sendall(self._frame)

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()


class LoadedBroker:
    """A broker process, and a connection to it."""

    def __init__(
        self,
        name: str,
        build: Build,
        scratch: Path,
        frames: list[bytes],
        *,
        is_sync_master: bool,
        has_acl: bool = False,
        has_tls: bool = False,
        batch: int = 1,
        delay_s: float = 0,
        receivers: int = 0,
    ) -> None:
        self.name = name
        self.figures: list[float] = []
        self.turns_us: list[float] = []
        self._frames, self._next, self._batch = frames, 0, batch
        self._delay_s = delay_s
        self._looked = 0.0, 0.0
        """Time of the last check whether all is delivered, and the processor time until then, µs.
        """
        config = f"brokerName=a\nbrokerIP1={HOST}\nlistenPort=0\nnamesrvAddr={HOST}:1\n"
        if has_acl:
            accounts = scratch.with_name(f"{scratch.name}.yml")
            accounts.write_text(ACCOUNTS)
            accounts.chmod(0o600)
            config += f"aclEnable=true\nrocketmq.acl.plain.file={accounts}\n"
        if has_tls:
            config += "tls.test.mode.enable=true\n"
        if is_sync_master:
            config += "brokerRole=SYNC_MASTER\n"
        ready = scratch / "ready"
        self.child = broker_of(build, config, scratch, "--ready-file", str(ready))
        wait_until(lambda: ready.exists() and bool(ready.read_text().strip()), f"{name} serves")
        ports = loads(ready.read_text())
        plain = create_connection((HOST, ports["broker"]))
        plain.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self._socket = Records(plain) if has_tls else plain
        self._receivers = WaitingReceivers(ports["broker"], receivers)
        if is_sync_master:
            Thread(target=_play_slave, args=(ports["ha"],), daemon=True).start()
            wait_until(self._has_slave, f"{name} has a slave")

    def _has_slave(self) -> bool:
        """Whether a send is answered as stored here and there."""
        self._send(send_frames(1, SerializeType.ROCKETMQ, 1))
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4]):
            answer += self._socket.recv(READ_BYTES)
        return decode_frame(answer[4:]).code == ResponseCode.SUCCESS

    def _send(self, frames: list[bytes]) -> None:
        if isinstance(self._socket, Records):
            self._socket.send(frames)
        else:
            self._socket.sendall(b"".join(frames))

    def load(self, size: int, least: int) -> None:
        """Sends `least` messages or some more, `size` sends at a time."""
        done, turns = 0, []
        before = scheduled_us(self.child.pid)
        while done < least:
            if self._next + size > len(self._frames):
                self._next = 0
            burst = self._frames[self._next : self._next + size]
            self._next += size
            began = perf_counter()
            self._send(burst)
            self._wait_for(size)
            turns.append(perf_counter() - began)
            done += size * self._batch
        if self._delay_s:
            self._looked = perf_counter() + self._delay_s, 0.0
            wait_until(self._is_idle, f"{self.name} has delivered")
        self.figures.append((scheduled_us(self.child.pid) - before) / done)
        self.turns_us.append(median(turns) * 1e6)

    def _is_idle(self) -> bool:
        """Whether everything is due, and hardly anything was done since the look before."""
        (looked_s, used_us), now_s = self._looked, perf_counter()
        if now_s < looked_s + LOOK_S:
            return False
        self._looked = now_s, scheduled_us(self.child.pid)
        return self._looked[1] - used_us < IDLE_SHARE * (now_s - looked_s) * 1e6

    def _wait_for(self, answers: int) -> None:
        data = b""
        while answers:
            part = self._socket.recv(READ_BYTES)
            if not part:
                raise ConnectionError(f"{self.name} closed the connection")
            if not data and (code := decode_frame(part[4 : 4 + int.from_bytes(part[:4])]).code):
                raise ConnectionError(f"{self.name} answers {code}")
            data += part
            while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4])):
                data, answers = data[end:], answers - 1

    def close(self) -> None:
        self._socket.close()
        self.child.stop()
        self._receivers.close()


def main() -> None:
    parser = parser_of("tests.bench.send_cpu", __doc__, "--at-a-time")
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--topics", type=int, default=1, help="sent to in turn")
    parser.add_argument("--json", action="store_true", help="use JSON headers")
    parser.add_argument("--acl", action="store_true", help="each with access control, too")
    parser.add_argument("--tls", action="store_true", help="each through TLS, too")
    parser.add_argument("--batch", type=int, default=1, help="messages in a send")
    parser.add_argument("--even", action="store_true", help="its bodies are of one length")
    parser.add_argument("--delayed", action="store_true", help="by a second")
    parser.add_argument("--sync-master", action="store_true", help="with a slave played here")
    parser.add_argument("--receivers", type=int, default=0, help="that wait at a second broker")
    options = parser.parse_args()
    kind = SerializeType.JSON if options.json else SerializeType.ROCKETMQ
    more = DELAYED if options.delayed else ""
    frames = send_frames(options.queues, kind, more=more, topics=options.topics)
    if options.batch > 1:
        frames = batch_frames(options.queues, kind, options.batch, is_even=options.even)
    signed = send_frames(options.queues, kind, account=ACCOUNT) if options.acl else []

    def make(name: str, build: Build, scratch: Path) -> LoadedBroker:
        has_acl = name.endswith(SIGNED)
        return LoadedBroker(
            name,
            build,
            scratch,
            signed if has_acl else frames,
            is_sync_master=options.sync_master,
            has_acl=has_acl,
            has_tls=name.endswith(TLS),
            batch=options.batch,
            delay_s=DELAY_S if options.delayed else 0,
            receivers=options.receivers if name.endswith(RECEIVING) else 0,
        )

    checkouts = options.brokers
    ends = ["", *([SIGNED] if options.acl else []), *([TLS] if options.tls else [])]
    ends += [RECEIVING] if options.receivers else []
    pairs = [text.partition("=") for text in checkouts]
    checkouts = [f"{name}{end}={at}" for name, _, at in pairs for end in ends]
    compare(checkouts, make, options.sizes, options.rounds, options.messages, WARM_UP)


if __name__ == "__main__":
    main()
