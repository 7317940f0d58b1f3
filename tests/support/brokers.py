"""A broker without sockets, under simulation, and short ways to send to it and pull from it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from actors.broker import Broker, Ports
from actors.config import BrokerConfig
from actors.hooks import SendHook
from actors.local_client import LocalClient
from actors.system import ActorSystem
from protocol.codes import RequestCode
from protocol.command import ONEWAY_FLAG, RemotingCommand
from protocol.headers.offset import QueueHeader
from protocol.headers.pull import PullMessageHeader
from protocol.headers.send import SendMessageHeader
from protocol.message import MessageRecord, decode_records
from protocol.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from storage.config import StoreConfig
from storage.disk import Disk
from tests.support.fake_disk import FakeDisk

PORTS = Ports(10911, 10909, 10912)
STORE = StoreConfig(
    root="/store",
    commit_log_file_bytes=65_536,
    consume_queue_file_bytes=6_000,
    max_hash_slots=64,
    max_index_entries=200,
)
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


@dataclass
class SimulatedBroker:
    """A broker on a simulated system; restarted on what a crash leaves of its disk."""

    seed: int
    disk: Disk = field(default_factory=FakeDisk)
    config: BrokerConfig = BROKER
    store_config: StoreConfig = STORE
    hooks: Sequence[SendHook] = ()
    start_ms: int = 1_700_000_000_000

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Opens the store and starts the actors."""
        self.system = ActorSystem.simulated(self.seed, self.disk, self.start_ms)
        self.broker = Broker(
            self.system,
            self.config,
            self.store_config,
            ports=PORTS,
            hooks=self.hooks,
            random=Random(self.seed),
        )
        self.system.start(*self.broker.children())
        self.client = self.new_client()

    def new_client(self, port: int = 1) -> LocalClient:
        """Another peer."""
        return LocalClient(self.system, self.broker.service(), port=port)

    def stop(self) -> None:
        """A clean stop."""
        assert self.system.stop(60)
        self.broker.close()

    def crash(self) -> None:
        """Everything in memory is gone, at once."""
        self.start_ms = self.system.clock.now_ms()
        self.system.crash()
        self.broker.store.abandon()

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """One request and its answer."""
        return self.client.request(command, timeout_s=120)

    def send(self, body: bytes = b"body", **options: Any) -> RemotingCommand:
        """Sends one message and waits for the answer."""
        return self.ask(send_command(body, **options))

    def pull(self, offset: int = 0, **options: Any) -> RemotingCommand:
        """One pull."""
        return self.ask(pull_command(offset, **options))

    def messages(self, topic: str = "Topic", queue_id: int = 0) -> list[MessageRecord]:
        """Everything a consumer can pull from a queue, in order."""
        found: list[MessageRecord] = []
        offset = int(self.ask(_queue(RequestCode.GET_MIN_OFFSET, topic, queue_id)).fields["offset"])  # type: ignore[index]
        while True:
            answer = self.pull(offset, topic=topic, queue_id=queue_id)
            if answer.code != 0:
                return found
            assert answer.body is not None and answer.fields is not None
            found += decode_records(answer.body)
            offset = int(answer.fields["nextBeginOffset"])


def _queue(code: RequestCode, topic: str, queue_id: int) -> RemotingCommand:
    return RemotingCommand(code, QueueHeader(topic, queue_id).encode())
