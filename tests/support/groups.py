"""Members of consumer groups at a simulated broker: they send heartbeats and answer the broker."""

from collections.abc import Callable, Mapping
from typing import Any

from protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from protocol.codes import LanguageCode, RequestCode
from protocol.frame import RemotingCommand
from tests.support.brokers import SimulatedBroker, subscription

Answer = Callable[[RemotingCommand], RemotingCommand | None]


class Client:
    """One client with a connection of its own."""

    def __init__(
        self,
        made: SimulatedBroker,
        client_id: str,
        port: int,
        *,
        version: int = 407,
        language: int = LanguageCode.JAVA,
        group: str = "consumers",
        expressions: Mapping[str, str] | None = None,
        model: str = "CLUSTERING",
        produces: str | None = None,
    ) -> None:
        self._made = made
        self.client_id = client_id
        self.peer = made.new_client(port)
        self._version, self._language = version, language
        self._group, self._model, self._produces = group, model, produces
        self.expressions = dict(expressions if expressions is not None else {"Topic": "*"})
        self.heartbeat()

    def heartbeat(self) -> None:
        """Says what it is."""
        wanted = [subscription(topic, each) for topic, each in self.expressions.items()]
        consumer = ConsumerData(
            self._group, "CONSUME_PASSIVELY", self._model, "CONSUME_FROM_FIRST_OFFSET", wanted
        )
        producers = [ProducerData(self._produces)] if self._produces else []
        body = HeartbeatData(self.client_id, producers, [consumer] if wanted else []).encode()
        assert self.ask(RequestCode.HEART_BEAT, body=body).code == 0

    def ask(
        self, code: RequestCode, fields: dict[str, str] | None = None, body: bytes | None = None
    ) -> RemotingCommand:
        """One request of this client and its answer."""
        command = RemotingCommand(
            code, fields, body, language=self._language, version=self._version
        )
        return self.peer.request(command, timeout_s=120)

    def commit(self, offset: int, queue_id: int = 0, topic: str = "Topic") -> None:
        """One-way, as consumers do."""
        command = update(self._group, offset, queue_id, topic)
        command.flag = 2
        self.peer.start(command)
        self._made.system.drain()

    def asked(self, code: RequestCode) -> list[RemotingCommand]:
        """Return the broker's requests of one kind since the last call."""
        self._made.system.drain()
        found = [each for each in self.peer.received if each.code == code]
        self.peer.received = [each for each in self.peer.received if each.code != code]
        return found

    def sign_off(self) -> None:
        """Leaves its group, as a client that shuts down."""
        fields = {"clientID": self.client_id, "consumerGroup": self._group}
        assert self.ask(RequestCode.UNREGISTER_CLIENT, fields).code == 0

    def close(self) -> None:
        """Close the connection."""
        self.peer.close()
        self._made.system.drain()


def update(group: str, offset: int, queue_id: int = 0, topic: str = "Topic") -> RemotingCommand:
    """The request form of a commit."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def start(made: SimulatedBroker, code: RequestCode, **fields: Any) -> list[RemotingCommand]:
    """Asks as an administrator; the list that the answer comes into."""
    answers: list[RemotingCommand] = []
    command = RemotingCommand(code, {name: str(value) for name, value in fields.items()})
    command.language = LanguageCode.JAVA
    made.client.start(command, answers.append)
    made.system.drain()
    return answers


def ask(made: SimulatedBroker, code: RequestCode, **fields: Any) -> RemotingCommand:
    """Send a request and return its immediate answer."""
    (answer,) = start(made, code, **fields)
    return answer
