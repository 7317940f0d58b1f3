"""Official brokers and slaves beside ours with access control: they cannot sign."""

from pathlib import Path

import pytest

from protocol.signature import Credentials
from tests.compat.client_cases import numbered, sends_in_all_ways_and_consumes
from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.guarded import (
    ACL,
    ADMINISTRATOR,
    BROKERS_ACCOUNT,
    READER,
    SHOP,
    WHITE,
    accounts,
    is_known,
    official_client,
    write_accounts,
)
from tests.compat.patience import wait_until
from tests.compat.servers import NameServer, official_home
from troupemq import Admin, Message, Producer, SendStatus
from troupemq.client.errors import RequestTimeout

pytestmark = pytest.mark.slow(seconds=8)


def guarded_name_server(folder: Path, make_name_server: MakeNameServer) -> NameServer:
    write_accounts(folder, accounts((), WHITE))
    name_server = make_name_server("ours", folder)
    name_server.settings |= ACL
    return name_server


@pytest.mark.whole
def test_an_allowlisted_official_broker_registers_and_serves_clients(
    request: pytest.FixtureRequest,
    scratch: Path,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> None:
    """With access control of its own; clients have the same account for both."""
    folder, topic = scratch / "guarded-official", "Sent-java"
    name_server = guarded_name_server(folder / "name-server", make_name_server)
    broker = make_broker("official", folder / "broker", name_server, **ACL)
    broker.asked_as = ADMINISTRATOR
    write_accounts(official_home(broker.scratch) / "conf", accounts([topic]))
    with (
        name_server,
        broker,
        official_client(request, "java", folder / "client", broker) as client,
    ):
        client.account = ADMINISTRATOR
        client.create_topic(topic, 2)
        wait_until(lambda: is_known(broker, topic), "a route")
        client.account = SHOP
        sends_in_all_ways_and_consumes(client)
        client.account = READER
        said = client.refused("sync", topic, numbered(1), group="denied")
        assert f"AclException: No default permission for topic:{topic}" in said


@pytest.mark.parametrize("by", ["white", pytest.param("haAllowed", marks=pytest.mark.whole)])
def test_an_official_slave_follows_our_master_by_its_address(
    by: str, scratch: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> None:
    """The slave requests tables from an allowlisted address; its log works with or without that."""
    folder = scratch / f"guarded-slave-{by}"
    name_server = guarded_name_server(folder / "name-server", make_name_server)
    write_accounts(folder / "master", accounts((), WHITE))
    settings = ACL | BROKERS_ACCOUNT | {"brokerRole": "SYNC_MASTER"}
    if by == "haAllowed":
        settings["haAllowedAddresses"] = "127.0.0.1"
    master = make_broker("ours", folder / "master", name_server, **settings)
    slave = make_broker("official", folder / "slave", name_server, brokerRole="SLAVE", brokerId="1")
    master.asked_as = slave.asked_as = ADMINISTRATOR
    with name_server, master, slave:
        credentials = Credentials(*ADMINISTRATOR)
        with Admin(name_server.address, credentials=credentials) as ours:
            ours.create_topic("Copied", 1)
        wait_until(lambda: is_known(master, "Copied"), "a route")
        with Producer("copying", name_server.address, credentials=credentials) as producer:

            def is_copied() -> bool:
                """A SYNC_MASTER says it of each message, once the slave keeps up with it."""
                try:
                    return producer.send(Message("Copied", b"x")).status is SendStatus.OK
                except RequestTimeout:
                    return False

            wait_until(is_copied, "a slave that follows")
        topics = slave.store / "config" / "topics.json"
        wait_until(lambda: topics.exists() and "Copied" in topics.read_text(), "its tables")
