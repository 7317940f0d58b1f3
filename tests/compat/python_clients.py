"""Shared parts of the cases with our Python clients: patience with a crowded broker, and topics."""

from tests.compat.conftest import wait_for_route
from tests.compat.servers import Broker
from troupemq import Admin, ProducerSettings

PATIENT = ProducerSettings(send_timeout_ms=10_000)


def new_topic(broker: Broker, topic: str, queues: int = 4) -> str:
    with Admin(broker.name_server.address) as admin:
        admin.create_topic(topic, queues)
    wait_for_route(broker, topic)
    return topic
