"""The official mqadmin, through a broker of either kind, reaches our Python consumers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.bodies import MessageQueue as MessageQueueKey
from protocol.bodies_client import ConsumerStatusBody
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import GetConsumerStatusHeader
from tests.compat.admin_shell import mqadmin_in_one_java
from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.groups import wait_for_commits
from tests.compat.mqadmin import Mqadmin
from tests.compat.patience import wait_until
from tests.compat.python_clients import new_topic
from tests.compat.python_members import SETTINGS, Got, member
from tests.compat.servers import Broker
from tests.compat.toolchain import Java
from troupemq.client.connection.remoting import Remoting
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.message import Message, MessageQueue
from troupemq.client.producing.producer import Producer
from troupemq.client.settings import ConsumerSettings

QUEUES = 4
COUNT = 40


@dataclass
class Stage:
    """A broker, mqadmin, and one member that has consumed what was sent."""

    broker: Broker
    run: Mqadmin
    producer: Producer

    @property
    def name_server(self) -> str:
        return self.broker.name_server.address

    def topic(self, name: str) -> str:
        new_topic(self.broker, name, QUEUES)
        for number in range(COUNT):
            queue = MessageQueue(name, "broker-a", number % QUEUES)
            self.producer.send(Message(name, b"%d" % number), queue=queue)
        return name

    def status(self, consumer: PushConsumer) -> dict[MessageQueueKey, int]:
        """Query the broker for the consumer's reported progress, which mqadmin cannot do."""
        (topic,) = {queue.topic for queue in consumer.queues() if "%" not in queue.topic}
        header = GetConsumerStatusHeader(topic, consumer.group)
        command = RemotingCommand(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header.encode())
        asker = Remoting(lambda address, command: None)
        try:
            answer = asker.ask(self.broker.address, command, 5000)
        finally:
            asker.close()
        return ConsumerStatusBody.decode(answer.body).consumer_table[consumer.client_id]

    def member(
        self, topic: str, got: Got, settings: ConsumerSettings = SETTINGS, *, orderly: bool = False
    ) -> PushConsumer:
        made = member(
            f"group-of-{topic}", got, self.name_server, settings=settings, orderly=orderly
        )
        made.subscribe(topic)
        return made


@pytest.fixture(scope="module", params=[pytest.param("official", marks=pytest.mark.whole), "ours"])
def stage(
    request: pytest.FixtureRequest,
    java_tools: Java,
    tmp_path_factory: pytest.TempPathFactory,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> Iterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("python-admin")
    with (
        make_name_server(request.param, folder / "name-server") as name_server,
        make_broker(request.param, folder / "broker", name_server) as broker,
        Producer("senders", name_server.address) as producer,
        mqadmin_in_one_java(java_tools, folder, name_server.address) as run,
    ):
        yield Stage(broker, run, producer)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_reset_of_a_running_consumer_redelivers_everything(stage: Stage, orderly: bool) -> None:
    topic, got = stage.topic(f"reset-{orderly}"), Got()
    with stage.member(topic, got, orderly=orderly) as consumer:
        got.wait(COUNT)
        ends = dict.fromkeys(range(QUEUES), COUNT // QUEUES)
        wait_for_commits(stage.broker, consumer.group, topic, ends)
        done = stage.run("resetOffsetByTime", "-g", consumer.group, "-t", topic, "-s", "0")
        assert done.returncode == 0 and "Exception" not in done.stderr, done.stderr
        views = got.wait(2 * COUNT)
        assert sorted(view.message_id for view in views[:COUNT]) == sorted(
            view.message_id for view in views[COUNT:]
        )
        key = MessageQueueKey(topic, "broker-a", 0)
        wait_until(lambda: stage.status(consumer)[key] == COUNT // QUEUES, "its own word", 10)


def test_the_status_of_a_python_consumer_is_shown(stage: Stage) -> None:
    topic, got = stage.topic("status"), Got()
    with stage.member(topic, got) as consumer:
        got.wait(COUNT)
        done = stage.run("consumerStatus", "-g", consumer.group, "-i", consumer.client_id, "-s")
    assert done.returncode == 0 and "Exception" not in done.stderr, done.stderr
    text = done.stdout
    for part in ("#Consumer Properties#", "#Consumer Subscription#", "#Consumer MQ Detail#"):
        assert part in text
    assert "PROP_CONSUME_TYPE" in text and "CONSUME_PASSIVELY" in text
    assert topic in text and "broker-a" in text
    assert "troupemq-pull" in text  # what its threads do


def test_a_python_consumer_consumes_a_message_on_request(stage: Stage) -> None:
    topic = stage.topic("directly")
    got = Got(lambda view: got_directly)
    got_directly = False
    with stage.member(topic, got) as consumer:
        views = got.wait(COUNT)
        where = ("-g", consumer.group, "-d", consumer.client_id)
        done = stage.run("queryMsgById", "-i", views[0].offset_message_id, *where)
        assert "consumeResult=CR_SUCCESS" in done.stdout, done.stdout + done.stderr
        got_directly = True
        done = stage.run("queryMsgById", "-i", views[0].offset_message_id, *where)
        assert "consumeResult=CR_LATER" in done.stdout, done.stdout + done.stderr
        again = got.views[COUNT:]
        assert [view.message_id for view in again] == [views[0].message_id] * 2
