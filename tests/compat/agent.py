"""Drives a client process: commands go in as JSON lines, all that it saw comes back as such."""

import json
import os
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import IO, Any

from tests.compat.corpus import Outgoing
from tests.compat.servers import OPENS, Broker, official_home
from tests.compat.toolchain import Java

Event = dict[str, Any]

ANSWER_DEADLINE_S = 60.0
SMALL_JVM = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dcom.rocketmq.remoting.client.connect.timeout=20000",  # 3 s are not enough in a crowd
]


@dataclass(frozen=True)
class Sent:
    """One send command and what the client said about it."""

    way: str
    topic: str
    messages: list[Outgoing]
    results: list[Event]
    wire: list[Event]
    began_ms: int
    ended_ms: int


class Agent:
    """One client process and the events it printed so far."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        broker: Broker,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.broker = broker
        self.account: tuple[str, str] | None = None
        """Key and secret of whatever clients it makes from now on."""
        self.events: list[Event] = []
        self._news = Condition()
        self._asking = Lock()
        self._ids = count(1)
        self._log = log
        self._ended = False
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {})},
            )
        assert self._process.stdin and self._process.stdout
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout
        self._reader = Thread(target=self._read, name=f"reader of {name}")
        self._reader.start()
        self.wait_for(lambda event: event["event"] == "ready")

    def create_topic(self, topic: str, queues: int) -> None:
        self._ask("create", group=f"creator-{self.name}", topic=topic, queues=queues)

    def send(self, way: str, topic: str, messages: Sequence[Outgoing], **settings: object) -> Sent:
        """`settings` are the producer's, and its group's name: `namespace`, `trace`.

        Of Go's requests: `timeout`, ms.
        """
        answer = self._ask(
            "send",
            **{"group": f"producer-{self.name}", **settings},
            way=way,
            topic=topic,
            messages=[message.as_json() for message in messages],
        )
        return Sent(
            way,
            topic,
            list(messages),
            answer["results"],
            answer["wire"],
            answer["began"],
            answer["ended"],
        )

    def refused(
        self, way: str, topic: str, messages: Sequence[Outgoing], **settings: object
    ) -> str:
        """Return the client's error of a send; AssertionError if it was accepted."""
        try:
            sent = self.send(way, topic, messages, **settings)
        except AssertionError as failed:
            return str(failed)
        told = [str(each.get("status", each.get("error"))) for each in sent.results]
        assert told and "SEND_OK" not in told, f"{self.name} has sent: {told}"
        return "\n".join(told)

    def transact(
        self, group: str, topic: str, messages: Sequence[Outgoing], reads: str = "checked"
    ) -> list[Event]:
        """Sends half messages; their properties `local` and `reads` hold what the producer knows:
        at the send, and at each check, in turn (commit, rollback, unknown)."""
        encoded = [message.as_json() for message in messages]
        answer = self._ask("transact", group=group, topic=topic, messages=encoded, reads=reads)
        results: list[Event] = answer["results"]
        return results

    def checks(self, reads: str = "checked") -> list[Event]:
        """Return the check-backs of the producer: serial, outcome, and number of the check."""
        return self._of("checked", reads)

    def join(
        self,
        member: str,
        group: str,
        topic: str,
        expression: str = "*",
        kind: str = "TAG",
        **settings: object,
    ) -> None:
        """`settings`: namespace, trace, orderly, broadcast, pause (ms), replies, maxReconsumeTimes,
        fails (the listener, always).

        Of Java only: batch (most at a time), succeeds (so many of a batch), nextLevel, and
        strategy, the name of an allocation.
        """
        details = {"group": group, "topic": topic, "expression": expression, "kind": kind}
        self._ask("join", member=member, **details, **settings)

    def leave(self, member: str) -> None:
        self._ask("leave", member=member)

    def ask(self, group: str, topic: str, body: bytes, timeout_ms: int) -> bytes:
        """A request, of Java only; the body of its reply."""
        answer = self._ask(
            "ask", group=group, topic=topic, body=b64encode(body).decode(), timeout=timeout_ms
        )
        return b64decode(answer["body"])

    def reply(self, group: str, topic: str, suffix: bytes) -> None:
        """From now on, of Java only, each message gets its body and `suffix` for a reply."""
        self._ask("reply", group=group, topic=topic, suffix=b64encode(suffix).decode())

    def received(self, member: str) -> list[Event]:
        """Return the messages of `member`, in the order of receipt."""
        return self._of("received", member)

    def everything_received(self) -> list[Event]:
        """Return the messages of all members, in the order of their reports."""
        with self._news:
            return [event for event in self.events if event["event"] == "received"]

    def replied(self, member: str) -> list[Event]:
        """Return the results of the replies that `member` sent."""
        return self._of("replied", member)

    def assigned(self, member: str) -> set[int]:
        """The queues that `member` holds by its last decision."""
        decisions = self._of("assigned", member)
        return set(decisions[-1]["queues"]) if decisions else set()

    def logged(self) -> str:
        """Return the log of the client library: standard error, or its file beside the log.

        With the tools of 5.x on the class path, the client writes into their file.
        """
        names = ("rocketmq_client*.log", "tools_default*.log")
        paths = [self._log, *(path for name in names for path in self._log.parent.rglob(name))]
        return "".join(path.read_text(errors="replace") for path in paths)

    def wait_for(self, wanted: Callable[[Event], bool]) -> Event:
        """The first event that is `wanted`; AssertionError if it does not come."""

        def found() -> Event | None:
            return next((event for event in self.events if wanted(event)), None)

        with self._news:
            self._news.wait_for(lambda: found() or self._ended, ANSWER_DEADLINE_S)
            event = found()
        assert event, f"{self.name} never told; it {'ended' if self._ended else 'still runs'}"
        return event

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Ends it as a power cut would: it says no goodbye to any server."""
        self._process.kill()
        self._close()

    def close(self) -> None:
        if self._process.poll() is None:
            self._in.close()
            try:
                self._process.wait(ANSWER_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._close()

    def _close(self) -> None:
        self._process.wait()
        self._reader.join()
        self._out.close()
        if not self._in.closed:
            self._in.close()

    def _ask(self, command: str, **details: object) -> Event:
        number = next(self._ids)
        addresses = {
            "nameServer": self.broker.name_server.address,
            "broker": self.broker.address,
        }
        if self.account is not None:
            addresses |= dict(zip(("accessKey", "secretKey"), self.account, strict=True))
        line = json.dumps({"command": command, "id": number, **addresses, **details})
        with self._asking:
            self._in.write(line.encode() + b"\n")
            self._in.flush()
        answer = self.wait_for(lambda event: event.get("id") == number)
        assert answer["event"] != "failed", f"{self.name}, {command}: {answer['error']}"
        return answer

    def _of(self, kind: str, member: str) -> list[Event]:
        with self._news:
            return [
                event
                for event in self.events
                if event["event"] == kind and event["member"] == member
            ]

    def _read(self) -> None:
        for line in self._out:
            event = json.loads(line)
            with self._news:
                self.events.append(event)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


def java_agent(name: str, java: Java, scratch: Path, broker: Broker, *options: str) -> Agent:
    """The Java client; `options` are system properties, such as its header serialisation."""
    home = official_home(scratch)
    command = [
        java.executable,
        *SMALL_JVM,
        *OPENS,
        f"-Drocketmq.client.logRoot={scratch}",
        f"-Drocketmq.home.dir={home}",
        f"-Duser.home={scratch}",
        *options,
        "-cp",
        java.class_path,
        "interop.Agent",
    ]
    return Agent(name, command, scratch / f"{name}.log", broker)


def go_client(name: str, program: Path, scratch: Path, broker: Broker) -> Agent:
    """The Go client; what a broadcast group has consumed is kept in `scratch`."""
    kept = {"rocketmq.client.localOffsetStoreDir": str(scratch)}
    return Agent(name, [str(program)], scratch / f"{name}.log", broker, kept)


@contextmanager
def closing(agent: Agent) -> Iterator[Agent]:
    try:
        yield agent
    finally:
        agent.close()
