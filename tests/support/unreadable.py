"""Messages whose bodies no client can decompress."""

from protocol.codes import COMPRESSED
from protocol.properties import format
from remoting.sync_connection import SyncConnection
from tests.support.brokers import send_command
from troupemq.testing import LocalBroker

UNREADABLE = b"not compressed, whatever the flag says"


def send_unreadable(broker: LocalBroker, topic: str, **properties: str) -> None:
    """Send a message that claims to be compressed and is not."""
    (place,) = broker.admin.route(topic).broker_datas
    command = send_command(
        UNREADABLE, topic=topic, properties=format(properties).decode(), sys_flag=COMPRESSED
    )
    with SyncConnection(place.broker_addrs[0]) as connection:
        assert connection.ask(command).code == 0
