"""Cost of a pull for the broker's process: `python -m tests.bench.pull_path [--rounds N]`.

A broker with real files has 128-byte messages in 8 queues in turn, as 64 producers leave them. One
connection pulls the backlog as a push consumer does: 32 messages a pull with a commit in it, one
pull at a time and eight at once, in both serialisations. CPU is that of all threads of the broker,
by the scheduler's count in ns, which excludes other work of the machine.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from socket import create_connection
from tempfile import TemporaryDirectory

from protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from protocol.codes import LanguageCode, RequestCode, SerializeType
from protocol.frame import RemotingCommand, encode
from protocol.headers.send import SendMessageHeader
from tests.compat.servers import OurBroker, OurNameServer
from troupemq.client.admin import Admin

TOPIC, GROUP = "Backlog", "consumers"
QUEUES = 8
PER_QUEUE = 25_600
BATCH = 32
CHUNK = 256
PROPERTIES = "KEYS\x01k17\x02UNIQ_KEY\x01C0A80102279300000000946E09652E8C960000\x02WAIT\x01true\x02"
ORDER = {
    SerializeType.JSON: (
        "queueId maxMsgNums sysFlag suspendTimeoutMillis commitOffset bname topic queueOffset"
        " expressionType subVersion consumerGroup"
    ),
    SerializeType.ROCKETMQ: (
        "consumerGroup topic queueId queueOffset maxMsgNums sysFlag commitOffset"
        " suspendTimeoutMillis subVersion expressionType bname"
    ),
}
"""Order of the fields as the Java client 4.9.7 writes them."""


class Line:
    """A connection that sends frames and reads whole answers, unseen."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = create_connection((host, int(port)))
        self._waiting = b""

    def ask(self, frames: Sequence[bytes]) -> int:
        """The bytes of as many answers; each must be a success."""
        self._socket.sendall(b"".join(frames))
        left, taken, data = len(frames), 0, self._waiting
        while left:
            position = 0
            while len(data) - position >= 4 and left:
                end = position + 4 + int.from_bytes(data[position : position + 4])
                if end > len(data):
                    break
                head = data[position + 8 : position + 18]
                if head != b'{"code":40':  # the broker says that the group has a new member
                    assert head.startswith((b'{"code":0,', b"\0\0")), head
                    left -= 1
                    taken += end - position
                position = end
            data = data[position:]
            if left:
                data += self._socket.recv(1 << 20)
        self._waiting = data
        return taken


def cpu_ns(pid: int) -> int:
    """Return the CPU time of all current threads of the process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def fill(line: Line) -> None:
    """Single sends to the queues in turn."""
    frames = []
    for queue_id in range(QUEUES):
        header = SendMessageHeader(
            "senders", TOPIC, "TBW102", 4, queue_id, 0, 1_700_000_000_000, 0, PROPERTIES, 0
        )
        command = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2,
            header.encode_v2(),
            b"x" * 128,
            opaque=77,
            language=LanguageCode.JAVA,
            serialize_type=SerializeType.ROCKETMQ,
        )
        frames.append(encode(command))
    for _ in range(PER_QUEUE * QUEUES // CHUNK):
        line.ask(frames * (CHUNK // QUEUES))


def join(line: Line) -> None:
    """The heartbeat of a push consumer."""
    data = SubscriptionData(TOPIC, "*", sub_version=1)
    consumer = ConsumerData(GROUP, "CONSUME_PASSIVELY", "CLUSTERING", None, [data])
    body = HeartbeatData("client", consumer_data_set=[consumer]).encode()
    line.ask([encode(RemotingCommand(RequestCode.HEART_BEAT, body=body, language=0))])


def pull(kind: SerializeType, queue_id: int, offset: int, opaque: int) -> bytes:
    fields = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(BATCH),
        "sysFlag": "3" if offset else "2",
        "commitOffset": str(offset),
        "suspendTimeoutMillis": "15000",
        "subVersion": "1",
        "expressionType": "TAG",
        "bname": "broker-a",
    }
    command = RemotingCommand(
        RequestCode.PULL_MESSAGE,
        {name: fields[name] for name in ORDER[kind].split()},
        opaque=opaque,
        language=LanguageCode.JAVA,
        serialize_type=kind,
    )
    return encode(command)


def backlog(line: Line, kind: SerializeType, at_once: int) -> int:
    """Pulls everything; gives the number of pulls."""
    count = 0
    for offset in range(0, PER_QUEUE, BATCH):
        frames = [pull(kind, queue, offset, 1000 + count + queue) for queue in range(QUEUES)]
        for first in range(0, QUEUES, at_once):
            line.ask(frames[first : first + at_once])
        count += QUEUES
    return count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pull_path", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many is printed")
    parser.add_argument("--scratch", help="where the store lies (default: the temporary folder)")
    options = parser.parse_args()
    with (
        TemporaryDirectory(dir=options.scratch) as folder,
        OurNameServer(Path(folder) / "name-server") as name_server,
        OurBroker(Path(folder) / "broker", name_server) as broker,
    ):
        with Admin(name_server.address) as admin:
            admin.create_topic(TOPIC, QUEUES)
        line = Line(broker.address)
        fill(line)
        join(line)
        for kind in (SerializeType.ROCKETMQ, SerializeType.JSON):
            for at_once in (1, QUEUES):
                costs = []
                for _ in range(options.rounds):
                    before = cpu_ns(broker.pid)
                    count = backlog(line, kind, at_once)
                    costs.append((cpu_ns(broker.pid) - before) / count / 1000)
                each = min(costs)
                sys.stdout.write(
                    f"{kind.name:<9} {at_once} at once {each:8.1f} µs a pull"
                    f" {each / BATCH:6.2f} µs a message\n"
                )


if __name__ == "__main__":
    main()
