"""Holes of 4.9.7 that name servers and replication have: each test has the hole's number.

The numbers and what 4.9.7 does: docs/security.md.
"""

from dataclasses import replace
from socket import socketpair

import pytest

from actors.access.guard import BROKER_KNOWN_MS
from actors.admin.settings import REFUSED
from actors.config import NamesrvConfig
from actors.namesrv_server import children, service
from actors.network.accepted import Accepted
from actors.network.service import Service
from actors.network.start_access import opened_acl
from protocol.bodies import RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode as Code
from protocol.command import RemotingCommand
from protocol.headers.namesrv import BrokerIdentityHeader, RegisterBrokerHeader
from tests.support.guarded import (
    ACCOUNTS,
    ACL_PATH,
    GuardedBroker,
    disk_with,
    signed,
    with_accounts,
    write_accounts,
)
from tests.support.local_client import LocalClient
from tests.support.simulation import SimulatedSystem

ACL_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
MORE = "- {accessKey: other-broker, secretKey: secret-other, broker: true}\n"
HERE, THERE = "10.0.0.1:10911", "10.0.0.2:10911"


class GuardedNamesrv:
    """A name server with access control, without sockets."""

    def __init__(self, config: NamesrvConfig | None = None) -> None:
        config = config or NamesrvConfig(acl_enable=True, acl_file=ACL_PATH, kv_config_path="/kv")
        self.system = SimulatedSystem(1, disk_with(ACCOUNTS + MORE), 1_700_000_000_000)
        acl = opened_acl(self.system, config, "")
        self._service = service(self.system, config, acl)
        specs = [each for each in children(self.system, config, [], acl)]
        self.system.start(*(each for each in specs if each.name != "namesrv_acceptor"))

    def client(self, host: str = "192.0.2.50") -> LocalClient:
        return LocalClient(self.system, self._service, host=host)

    def ask(
        self, account: str | None, command: RemotingCommand, *, host: str = "192.0.2.50"
    ) -> RemotingCommand:
        if account is not None:
            secret = "secret-other" if account == "other-broker" else None
            signed(command, account, secret)
        return self.client(host).request(command)


def registration(address: str = HERE, name: str = "broker-a") -> RemotingCommand:
    header = RegisterBrokerHeader(name, address, "DefaultCluster", address, 0)
    body = RegisterBrokerBody(TopicConfigTable({"Orders": TopicConfig("Orders")}))
    return RemotingCommand(Code.REGISTER_BROKER, header.encode(), body.encode())


def goodbye(address: str = HERE) -> RemotingCommand:
    header = BrokerIdentityHeader("broker-a", address, "DefaultCluster", 0)
    return RemotingCommand(Code.UNREGISTER_BROKER, header.encode())


def route(namesrv: GuardedNamesrv) -> bytes:
    asked = RemotingCommand(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "Orders"}, version=407)
    return bytes(namesrv.ask("shop-account", asked).body or b"")


# --- H14, H15: name servers


@pytest.mark.parametrize("account", [None, "shop-account", "monitor-account"])
def test_h14_only_brokers_register_brokers(account: str | None) -> None:
    namesrv = GuardedNamesrv()
    answer = namesrv.ask(account, registration())
    assert answer.code == 1 and (answer.remark or "").startswith(ACL_EXCEPTION)
    assert namesrv.ask("broker-account", registration()).code == 0
    answer = namesrv.ask(account, goodbye())
    assert answer.code == 1 and HERE.encode() in route(namesrv)


def test_h14_an_official_broker_comes_in_by_its_white_address() -> None:
    namesrv = GuardedNamesrv()
    assert namesrv.ask(None, registration(), host="192.0.2.7").code == 0
    assert HERE.encode() in route(namesrv)


def test_h14_its_accounts_are_looked_at_every_five_seconds() -> None:
    namesrv = GuardedNamesrv()
    assert namesrv.ask("other-broker", registration()).code == 0
    write_accounts(namesrv.system.disk, ACCOUNTS)
    namesrv.system.advance(4999)
    assert namesrv.ask("other-broker", registration()).code == 0
    namesrv.system.advance(1)
    refused = namesrv.ask("other-broker", registration())
    assert "No acl config for other-broker" in (refused.remark or "")


@pytest.mark.parametrize("code", [100, 102, 205, 216, 318, 319, 327])
def test_h14_only_administrators_change_a_name_server(code: int) -> None:
    namesrv = GuardedNamesrv()
    for account, host in (("broker-account", "192.0.2.50"), (None, "192.0.2.7")):
        answer = namesrv.ask(account, RemotingCommand(code, {}), host=host)
        assert "Need admin permission" in (answer.remark or "")


def test_h15_a_live_brokers_name_is_not_taken_over() -> None:
    namesrv = GuardedNamesrv()
    holder = namesrv.client()
    assert holder.request(signed(registration(), "broker-account")).code == 0
    answer = namesrv.ask("other-broker", registration(THERE))
    assert answer.code == 1 and f"is alive at {HERE}" in (answer.remark or "")
    assert THERE.encode() not in route(namesrv)
    assert namesrv.ask("other-broker", goodbye()).code == 1
    assert HERE.encode() in route(namesrv)
    holder.close()
    namesrv.system.drain()
    assert namesrv.ask("other-broker", registration(THERE)).code == 0
    assert namesrv.ask("administrator", goodbye(THERE)).code == 0


def test_h15_two_official_brokers_are_told_apart_by_their_machines() -> None:
    namesrv = GuardedNamesrv()
    assert namesrv.client("192.0.2.7").request(registration()).code == 0
    assert namesrv.ask("broker-account", registration(THERE)).code == 1
    assert namesrv.client("192.0.2.7").request(registration(THERE)).code == 0


def test_h15_a_white_address_does_not_pass_for_the_account_that_it_names() -> None:
    namesrv = GuardedNamesrv()
    assert namesrv.client().request(signed(registration(), "broker-account")).code == 0
    unsigned = registration(THERE)
    assert unsigned.fields is not None
    unsigned.fields["AccessKey"] = "broker-account"
    assert namesrv.ask(None, unsigned, host="192.0.2.7").code == 1
    assert THERE.encode() not in route(namesrv)


@pytest.mark.parametrize("address", ["x\n:1", "x", "x:", ":1", "a b:1", "x:1\n", "x:100000", ""])
def test_h15_an_address_is_host_and_port(address: str) -> None:
    answer = GuardedNamesrv().ask("broker-account", registration(address))
    assert (answer.code, answer.remark) == (1, "brokerAddr is no host:port")


# --- H16: replication


def connects(made: GuardedBroker, host: str) -> bool:
    """Whether the master keeps a connection from there."""
    ours, theirs = socketpair()
    theirs.setblocking(False)
    made.system.address("ha_master").tell(Accepted(theirs, (host, 1), Service({})))
    made.system.drain()
    made.system.advance(10)
    is_open = theirs.fileno() != -1
    ours.close()
    return is_open


def test_h16_a_stranger_gets_no_log() -> None:
    made = GuardedBroker(1)
    assert not connects(made, "198.51.100.1")
    assert made.broker.replicas.link_count == 0
    made.stop()


def test_h16_a_slave_comes_in_by_its_white_address_or_after_it_has_shown_itself() -> None:
    made = GuardedBroker(1)
    assert connects(made, "192.0.2.7")
    assert not connects(made, "10.0.0.9")
    asked = RemotingCommand(Code.GET_BROKER_RUNTIME_INFO)
    assert made.ask_as("monitor-account", replace(asked), host="10.0.0.9").code == 0
    assert not connects(made, "10.0.0.9"), "who may look is no slave"
    assert made.ask_as("broker-account", replace(asked), host="10.0.0.9").code == 0
    assert connects(made, "10.0.0.9")
    made.system.advance(BROKER_KNOWN_MS)
    assert not connects(made, "10.0.0.9")
    made.stop()


def test_h16_only_allowed_addresses_where_they_are_named() -> None:
    made = with_accounts(1, ACCOUNTS, {"ha_allowed_addresses": "10.0.0.*"})
    assert connects(made, "10.0.0.9")
    assert not connects(made, "192.0.2.7")
    made.stop()


# --- H17: settings


@pytest.mark.parametrize(
    "key",
    [
        *("aclEnable", "namesrvAddr", "rmqAddressServerDomain", "haMasterAddress", "brokerIP1"),
        *("brokerIP2", "bindAddress", "listenPort", "brokerAccessKey", "brokerSecretKey"),
        *("aclWhiteListAdmin", "rocketmq.acl.plain.file", "haAllowedAddresses"),
    ],
)
def test_h17_no_request_takes_a_broker_from_its_operator(key: str) -> None:
    made = GuardedBroker(1)
    answer = made.ask(RemotingCommand(Code.UPDATE_BROKER_CONFIG, body=f"{key}=x\n".encode()))
    assert (answer.code, answer.remark) == (16, REFUSED)
    made.stop()
