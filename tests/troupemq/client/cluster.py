"""A name server and two brokers that store whatever a producer sends them."""

from collections.abc import Callable
from types import SimpleNamespace

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from tests.troupemq.fake_server import FakeServer
from troupemq.client.message import Message
from troupemq.client.producing.producer import Producer
from troupemq.client.settings import ProducerSettings

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
MESSAGE = Message("T", b"body", tags="new", keys="k", properties={"a": "b"}, flag=7)


class Cluster(SimpleNamespace):
    namesrv: FakeServer
    a: FakeServer
    b: FakeServer

    def producer(self, settings: ProducerSettings | None = None) -> Producer:
        return Producer("pg", self.namesrv.address, settings=settings)


def stored(command: RemotingCommand, code: int = ResponseCode.SUCCESS) -> RemotingCommand:
    assert command.fields is not None
    fields = {"msgId": "OFFSETID", "queueId": command.fields["e"], "queueOffset": "42"}
    return command.answer(code, fields)


def refuse(code: ResponseCode) -> Callable[[RemotingCommand], RemotingCommand]:
    return lambda command: command.answer(code, remark="refused")


def sends(server: FakeServer) -> int:
    """Return the number of sends that the broker received."""
    count = 0
    while not server.received.empty():
        count += server.received.get().code in (SEND, BATCH)
    return count
