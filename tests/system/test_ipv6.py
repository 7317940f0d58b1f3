"""A name server and a broker that are reached by IPv6, by IPv4, or by both."""

from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from socket import has_dualstack_ipv6

import pytest

from actors.config import parse_broker_config, parse_namesrv_config
from protocol.codes import ResponseCode
from protocol.host import host_port
from tests.compat.servers import free_port
from tests.manual.following import wait_for_registration
from tests.support.brokers import send_command
from tests.support.sockets import Line, connection_of
from troupemq import Admin, Message, Producer
from troupemq.cli.servers import SMALL_FILES
from troupemq.servers import Servers

pytestmark = pytest.mark.skipif(not has_dualstack_ipv6(), reason="this machine has no IPv6")

TOPIC = "T"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Start servers that advertise ::1 and listen as they do by default."""
    servers = Servers(lambda reason: None)
    kv = str(tmp_path / "kv.json")
    settings = {"listenPort": "0", "kvConfigPath": kv}
    servers.start_namesrv(parse_namesrv_config("", settings)[0])
    namesrv = host_port("::1", servers.ports["namesrv"])
    own = {"listenPort": "0", "brokerIP1": "[::1]", "brokerIP2": "::1", "namesrvAddr": namesrv}
    health = {"healthPort": str(free_port())}
    broker, store, _ = parse_broker_config(
        "",
        {**own, **health, "storePathRootDir": str(tmp_path / "store"), **SMALL_FILES},
    )
    servers.start_broker(broker, store)
    wait_for_registration(servers)
    yield servers
    servers.stop(20)


def test_a_broker_listens_at_its_advertised_ipv6_address(servers: Servers) -> None:
    """The broker advertised it without listening at it: every send failed."""
    broker = host_port("::1", servers.ports["broker"])
    for host in ("::1", "127.0.0.1"):
        namesrv = host_port(host, servers.ports["namesrv"])
        with Admin(namesrv) as admin, Producer("P", namesrv) as producer:
            admin.create_topic(TOPIC, 1)
            sent = producer.send(Message(TOPIC, b"body"))
            found = admin.view_message(sent.offset_message_id)
        assert (found.store_host, found.born_host.rpartition(":")[0]) == (broker, "[::1]")


def test_an_ipv4_client_is_seen_with_its_ipv4_address(servers: Servers) -> None:
    with Line.to(servers.ports["broker"]) as line:
        assert line.ask(send_command(topic="TBW102")).code == ResponseCode.SUCCESS
        assert servers.broker is not None
        assert connection_of(servers.system, line).remote_host == "127.0.0.1"


def test_every_port_of_a_server_answers_by_both_families(servers: Servers) -> None:
    for host in ("127.0.0.1", "::1"):
        connection = HTTPConnection(host, servers.ports["health"], timeout=10)
        connection.request("GET", "/health/live")
        assert connection.getresponse().status == 200
        connection.close()
