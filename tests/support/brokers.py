"""A broker without sockets, under simulation, and short ways to send to it and pull from it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Protocol

from actors.broker import Broker
from actors.config import BrokerConfig
from actors.engine.actor import Actor
from actors.engine.supervisor import ChildSpec
from actors.network.hooks import Hook
from actors.network.messages import Buffer, Sends
from actors.parts import Ports
from protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from protocol.bodies_tables import SubscriptionGroupConfig
from protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.headers.client import PullMessageHeader, QueueHeader
from protocol.headers.send import SendMessageHeader
from protocol.message import MessageRecord, decode_records
from protocol.send_values import send_of
from protocol.stream import CommandStream
from protocol.tags import TagFilter, java_hash_code
from storage.config import StoreConfig
from storage.files.disk import Disk
from tests.support.peers import RecordingPeer
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedClock, SimulatedSystem
from troupemq.testing.virtual_broker import LocalClient

PORTS = Ports(10911, 10909, 10912)
STORE = StoreConfig(
    root="/store",
    commit_log_file_bytes=65_536,
    consume_queue_file_bytes=6_000,
    max_hash_slots=64,
    max_index_entries=200,
)


def store_in(root: Path, config: StoreConfig = STORE, **changed: Any) -> StoreConfig:
    """Return these settings for a store at a real `root`, with its commit log below that."""
    return replace(config, root=str(root), commit_log_dir="", **changed)


BROKER = BrokerConfig(broker_name="broker-a", broker_ip1="127.0.0.1", broker_ip2="127.0.0.1")


def send_command(
    body: bytes = b"body",
    *,
    topic: str = "Topic",
    queue_id: int = 0,
    properties: str = "",
    oneway: bool = False,
    batch: bool = False,
    **fields: Any,
) -> RemotingCommand:
    """A send as a Java client makes it."""
    header = SendMessageHeader(
        producer_group="producers",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=properties,
        reconsume_times=0,
        batch=batch,
    )
    header = replace(header, **fields)
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    flag = ONEWAY_FLAG if oneway else 0
    return RemotingCommand(code, header.encode_v2(), body, flag=flag)


def pull_command(
    offset: int = 0,
    *,
    topic: str = "Topic",
    queue_id: int = 0,
    count: int = 32,
    expression: str | None = "*",
    hold_ms: int = 0,
    sys_flag: int = 0,
    **fields: Any,
) -> RemotingCommand:
    """A pull that brings its subscription along, unless `expression` is None."""
    if expression is not None:
        sys_flag |= PULL_SUBSCRIPTION
    if hold_ms:
        sys_flag |= PULL_SUSPEND
    header = PullMessageHeader(
        consumer_group="consumers",
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=sys_flag,
        commit_offset=0,
        suspend_timeout_ms=hold_ms,
        subscription=expression,
        sub_version=0,
        expression_type="TAG",
    )
    return RemotingCommand(RequestCode.PULL_MESSAGE, replace(header, **fields).encode())


def subscription(
    topic: str, expression: str = "*", version: int = 1, kind: str = "TAG"
) -> SubscriptionData:
    """Return a subscription as a Java client makes it."""
    tags = sorted(TagFilter.parse(expression).tags) if kind == "TAG" else []
    codes = [java_hash_code(tag) for tag in tags]
    return SubscriptionData(topic, expression, tags, codes, version, kind)


class FramesPeer(RecordingPeer):
    """A peer that takes ready-made frames, as a connection does, and keeps them."""

    def __init__(self, host: str = "192.0.2.7") -> None:
        super().__init__(host)
        self.writes: list[int] = []
        """Number of frames in each write."""
        self.released_bytes = 0

    def write(self, frames: Sequence[Buffer], released_bytes: int = 0) -> None:
        commands = list(CommandStream().receive(b"".join(frames)))
        self.writes.append(len(commands))
        self.received += commands
        self.released_bytes += released_bytes

    def sends(self, *commands: RemotingCommand, request_bytes: int = 100) -> Sends:
        """Return these sends as a connection passes them on, numbered from 0."""
        numbered = [replace(command, opaque=n) for n, command in enumerate(commands)]
        return Sends(self, [send_of(command) for command in numbered], request_bytes)

    def answers(self) -> list[RemotingCommand]:
        """Return the answers in the order of the sends."""
        return sorted(self.received, key=lambda answer: answer.opaque)


class Stoppable(Protocol):
    """Part of a test that is stopped at its end."""

    def stop(self) -> None: ...


running: list[Stoppable] = []
"""Simulated brokers and worlds of the current test. tests/conftest.py stops them at its end."""


@dataclass(eq=False)
class SimulatedBroker:
    """A broker on a simulated system; restarted on what a crash leaves of its disk."""

    seed: int
    disk: Disk = field(default_factory=FakeDisk)
    config: BrokerConfig = BROKER
    store_config: StoreConfig = STORE
    hooks: Sequence[Hook] = ()
    start_ms: int = 1_700_000_000_000
    instead: Mapping[str, Callable[[Broker], Actor]] = field(default_factory=dict)
    """Actors of the test's own in the place of some of the broker's, by name."""
    before: Sequence[ChildSpec] = ()
    """Children of the test's own: started before the broker's, and stopped after them."""
    ports: Ports = PORTS

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Open the store and start the actors."""
        self.system = SimulatedSystem(self.seed, self.disk, self.start_ms)
        self.broker = Broker(
            self.system,
            self.config,
            self.store_config,
            ports=self.ports,
            hooks=self.hooks,
            random=Random(self.seed),
        )
        self.system.start(*self.before, *map(self._replaced, self.broker.children()))
        running.append(self)
        self.client = self.new_client()

    def _replaced(self, spec: ChildSpec) -> ChildSpec:
        make = self.instead.get(spec.name)
        return spec if make is None else replace(spec, factory=lambda _: make(self.broker))

    @property
    def clock(self) -> SimulatedClock:
        """The clock, for tests that wind it by hand."""
        clock = self.system.clock
        assert isinstance(clock, SimulatedClock)
        return clock

    def new_client(
        self, port: int = 1, *, host: str = "127.0.0.1", fast: bool = False
    ) -> LocalClient:
        return LocalClient(self.system, self.broker.service(fast=fast), host=host, port=port)

    def stop(self) -> None:
        """Stop cleanly, if it runs. The end of a test does this for every broker."""
        if self not in running:
            return
        running.remove(self)
        assert self.system.stop(60)
        self.broker.close()

    def crash(self) -> None:
        """Lose everything in memory, at once."""
        running.remove(self)
        self.start_ms = self.system.clock.now_ms()
        self.system.crash()
        self.broker.store.abandon()

    def restart_killed(self) -> None:
        """Die, and start again on what the process left."""
        disk = self.disk
        assert isinstance(disk, FakeDisk)
        self.crash()
        self.disk = disk.killed()
        self.start()

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """One request and its answer."""
        return self.client.request(command, timeout_s=120)

    def send(self, body: bytes = b"body", **options: Any) -> RemotingCommand:
        """Sends one message and waits for the answer."""
        return self.ask(send_command(body, **options))

    def pull(self, offset: int = 0, **options: Any) -> RemotingCommand:
        return self.ask(pull_command(offset, **options))

    def start_send(self, body: bytes = b"body", **options: Any) -> list[RemotingCommand]:
        """Sends one message; the list gets the answer, once the system has run so far."""
        answers: list[RemotingCommand] = []
        self.client.start(send_command(body, **options), answers.append)
        return answers

    def stored(self, answer: RemotingCommand) -> MessageRecord:
        """The record in the log that the answer to a send names."""
        assert answer.code == 0 and answer.fields is not None, answer
        record = self.broker.store.commit_log.read_record(int(answer.fields["msgId"][-16:], 16))
        assert record is not None
        return record

    def records(self) -> list[MessageRecord]:
        """Everything in the log, whether consumers can see it or not."""
        log = self.broker.store.commit_log
        found = [log.read_record(head.physical_offset) for head in log.walk(log.min_offset())]
        return [record for record in found if record is not None]

    def offset(self, code: RequestCode, topic: str = "Topic", queue_id: int = 0) -> int:
        """The answer to a question about one end of a queue."""
        return int((self.ask(_queue(code, topic, queue_id)).fields or {})["offset"])

    def make_topic(
        self,
        topic: str = "Topic",
        *,
        queues: int = 4,
        read_queues: int | None = None,
        perm: int = 6,
        filter_type: str = "SINGLE_TAG",
    ) -> None:
        """Create a topic as an administrator does."""
        reads = queues if read_queues is None else read_queues
        header = CreateTopicHeader(topic, "TBW102", reads, queues, perm, filter_type)
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        assert self.ask(RemotingCommand(code, header.encode())).code == 0

    def make_group(self, group: str = "consumers", **settings: Any) -> None:
        """Create a group as an administrator does."""
        body = SubscriptionGroupConfig(group, **settings).encode()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert self.ask(RemotingCommand(code, body=body)).code == 0

    def subscribe(
        self,
        expression: str = "*",
        *,
        topic: str = "Topic",
        version: int = 1,
        kind: str = "TAG",
        model: str = "CLUSTERING",
        group: str = "consumers",
        client_id: str = "client",
    ) -> None:
        """The heartbeat of a consumer."""
        data = subscription(topic, expression, version, kind)
        consumer = ConsumerData(group, "CONSUME_PASSIVELY", model, None, [data])
        body = HeartbeatData(client_id, consumer_data_set=[consumer]).encode()
        assert self.ask(RemotingCommand(RequestCode.HEART_BEAT, body=body)).code == 0

    def messages(self, topic: str = "Topic", queue_id: int = 0) -> list[MessageRecord]:
        """Everything a consumer can pull from a queue, in order."""
        found: list[MessageRecord] = []
        self.system.drain()  # an answer may be there before its message can be pulled
        offset = self.offset(RequestCode.GET_MIN_OFFSET, topic, queue_id)
        while True:
            answer = self.pull(offset, topic=topic, queue_id=queue_id)
            if answer.code != 0:
                return found
            assert answer.body is not None and answer.fields is not None
            found += decode_records(answer.body)
            offset = int(answer.fields["nextBeginOffset"])


def _queue(code: RequestCode, topic: str, queue_id: int) -> RemotingCommand:
    return RemotingCommand(code, QueueHeader(topic, queue_id).encode())
