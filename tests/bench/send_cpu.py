"""What a send costs a broker, whole: `python -m tests.bench.send_cpu [NAME=CHECKOUT …]`; a table.

Broker processes, one from each checkout of this project (this one, unless others are named), take
the same prepared frames over a socket, in turn: so many sends at a time, the next when all are
answered.  Each figure is processor time of the broker, kernel included, in µs a send: the least of
the rounds, and their median.  Other work on the machine delays the rounds more than it changes
these, so two versions can be compared beside it; a figure alone says little.  With `--sync-master`
each broker has a slave that is played here and reports at once what it gets; "µs a turn" is the
time on the clock from a burst to its last answer, median of the rounds.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import ExitStack
from json import loads
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter

from protocol.codes import LanguageCode, RequestCode, ResponseCode, SerializeType
from protocol.command import RemotingCommand
from protocol.frame import decode_frame, encode
from protocol.ha import TransferBuffer, encode_report
from protocol.headers.send import SendMessageHeader
from tests.bench.process_figures import scheduled_us
from tests.compat.child import Child
from tests.compat.patience import wait_until

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
DISTINCT = 8_000
"""Frames made beforehand; then they come again."""

TOPIC = "BenchmarkTest"
"""Every broker has it, with 1,024 queues."""

WARM_UP = 16_000
READ_BYTES = 256 << 10


def send_frames(queues: int, kind: SerializeType, count: int = DISTINCT) -> list[bytes]:
    """As the Java client makes them: 128-byte bodies, a unique key and a tag."""
    frames = []
    for number in range(count):
        born_ms = 1_700_000_000_000 + number // 50
        properties = (
            f"UNIQ_KEY\x01C0A80102279300000000946E{born_ms & 0xFFFFFFFF:08X}{number:04X}\x02"
            "WAIT\x01true\x02TAGS\x01TagA"
        )
        header = SendMessageHeader(
            "group", TOPIC, "TBW102", queues, number % queues, 0, born_ms, 0, properties, 0
        )
        command = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2,
            header.encode_v2(),
            b"x" * 128,
            opaque=number,
            language=LanguageCode.JAVA,
            version=399,
            serialize_type=kind,
        )
        frames.append(encode(command))
    return frames


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


class LoadedBroker:
    """A broker process, and a connection to it."""

    def __init__(
        self, name: str, checkout: Path, scratch: Path, *, is_sync_master: bool = False
    ) -> None:
        self.name = name
        self.figures: list[float] = []
        self.turns_us: list[float] = []
        scratch.mkdir(parents=True)
        ready, config = scratch / "ready", scratch / "broker.conf"
        config.write_text(
            f"brokerName=a\nbrokerIP1={HOST}\nlistenPort=0\nnamesrvAddr={HOST}:1\n"
            f"storePathRootDir={scratch / 'store'}\n"
            + ("brokerRole=SYNC_MASTER\n" if is_sync_master else "")
        )
        command = [sys.executable, "-m", "troupemq", "broker", "-c", str(config)]
        self.child = Child(
            [*command, "--ready-file", str(ready)],
            scratch / "log",
            {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"},
        )
        wait_until(lambda: ready.exists() and bool(ready.read_text().strip()), f"{name} serves")
        ports = loads(ready.read_text())
        self._socket = create_connection((HOST, ports["broker"]))
        self._socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        if is_sync_master:
            Thread(target=_play_slave, args=(ports["ha"],), daemon=True).start()
            wait_until(self._has_slave, f"{name} has a slave")

    def _has_slave(self) -> bool:
        """Whether a send is answered as stored here and there."""
        self._socket.sendall(send_frames(1, SerializeType.ROCKETMQ, 1)[0])
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4]):
            answer += self._socket.recv(READ_BYTES)
        return decode_frame(answer[4:]).code == ResponseCode.SUCCESS

    def cpu_us(self) -> float:
        """Of all its threads until now."""
        return scheduled_us(self.child.pid)

    def load(self, bursts: Sequence[Sequence[bytes]], least: int) -> float:
        """Sends whole rounds of bursts, `least` messages or some more; gives µs a message."""
        before, done = self.cpu_us(), 0
        turns = []
        while done < least:
            for burst in bursts:
                began = perf_counter()
                self._socket.sendall(b"".join(burst))
                self._wait_for(len(burst))
                turns.append(perf_counter() - began)
                done += len(burst)
        self.turns_us.append(median(turns) * 1e6)
        return (self.cpu_us() - before) / done

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


def main() -> None:
    parser = ArgumentParser(prog="python -m tests.bench.send_cpu", description=__doc__)
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--sends", type=int, default=8_000, help="of a round")
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="JSON headers")
    parser.add_argument("--sync-master", action="store_true", help="with a slave played here")
    parser.add_argument("brokers", nargs="*", default=[f"here={ROOT}"], metavar="NAME=CHECKOUT")
    options = parser.parse_args()
    frames = send_frames(
        options.queues, SerializeType.JSON if options.json else SerializeType.ROCKETMQ
    )
    print(f"{'broker':<16}{'at a time':>10}{'least µs':>10}{'median µs':>11}{'µs a turn':>11}")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="troupemq-send-cpu-")))
        brokers = []
        for number, text in enumerate(options.brokers):
            name, _, checkout = text.partition("=")
            brokers.append(
                LoadedBroker(
                    name,
                    Path(checkout),
                    scratch / str(number),
                    is_sync_master=options.sync_master,
                )
            )
            stack.callback(brokers[-1].close)
        for size in options.at_a_time:
            bursts = [frames[at : at + size] for at in range(0, DISTINCT, size)]
            for broker in brokers:
                broker.load(bursts, WARM_UP if not broker.figures else 1)
                broker.figures.clear()
                broker.turns_us.clear()
            for number in range(options.rounds):
                for broker in brokers if number % 2 else reversed(brokers):
                    broker.figures.append(broker.load(bursts, options.sends))
            for broker in brokers:
                least, middle = min(broker.figures), median(broker.figures)
                turn = median(broker.turns_us)
                print(
                    f"{broker.name:<16}{size:>10}{least:>10.2f}{middle:>11.2f}{turn:>11.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
