"""Holes of 4.9.7 that name servers and replication have: each test has the hole's number.

The numbers and what 4.9.7 does: docs/security.md.
"""

from dataclasses import replace
from socket import socketpair

import pytest

from actors.access.access_state import BROKER_KNOWN_MS
from actors.admin.settings import REFUSED
from actors.config import NamesrvConfig
from actors.network.connections import Accepted
from actors.network.request import Service
from protocol.bodies_own import AclRefusals
from protocol.bodies_tables import DataVersion
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import BrokerIdentityHeader
from tests.support.guarded import (
    ACCOUNTS,
    ACL_PATH,
    GuardedBroker,
    signed,
    with_accounts,
    write_accounts,
)
from tests.support.guarded_namesrv import (
    HERE,
    OTHER_WHITE,
    WHITE,
    GuardedNamesrv,
    as_account,
    registration,
)

ACL_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
THERE = "10.0.0.2:10911"
Asker = tuple[str | None, str]
"""Account, or None for a white address; host."""
TAKERS: list[tuple[Asker, Asker]] = [
    (("broker-account", "192.0.2.50"), ("other-broker", "198.51.100.9")),
    ((None, WHITE), (None, OTHER_WHITE)),
    (("broker-account", "192.0.2.50"), (None, OTHER_WHITE)),
    ((None, WHITE), ("other-broker", "198.51.100.9")),
]
"""Owners of a broker name, and accounts that try to register it."""


def goodbye(address: str = HERE, name: str = "broker-a") -> RemotingCommand:
    header = BrokerIdentityHeader(name, address, "DefaultCluster", 0)
    return RemotingCommand(Code.UNREGISTER_BROKER, header.encode())


def question(address: str = HERE, name: str = "broker-a") -> RemotingCommand:
    """Whether a broker's topics are known as they are: that keeps it alive."""
    header = BrokerIdentityHeader(name, address, "DefaultCluster", 0)
    body = DataVersion().encode()
    return RemotingCommand(Code.QUERY_DATA_VERSION, header.encode(), body)


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


def test_h14_an_official_broker_registers_from_its_allowlisted_address() -> None:
    namesrv = GuardedNamesrv()
    assert namesrv.ask(None, registration(), host="192.0.2.7").code == 0
    assert HERE.encode() in route(namesrv)


def test_h14_a_name_server_checks_its_accounts_every_five_seconds() -> None:
    namesrv = GuardedNamesrv()
    assert namesrv.ask("other-broker", registration()).code == 0
    write_accounts(namesrv.system.disk, ACCOUNTS)
    namesrv.system.advance(4999)
    assert namesrv.ask("other-broker", registration()).code == 0
    namesrv.system.advance(1)
    refused = namesrv.ask("other-broker", registration())
    assert "No acl config for other-broker" in (refused.remark or "")


KEPT = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Kept", "value": "x:1"}
CHANGES: dict[int, tuple[dict[str, str], bytes | None]] = {
    Code.PUT_KV_CONFIG: (
        {"namespace": "ORDER_TOPIC_CONFIG", "key": "Orders", "value": "x:1"},
        None,
    ),
    Code.DELETE_KV_CONFIG: ({"namespace": "ORDER_TOPIC_CONFIG", "key": "Kept"}, None),
    Code.WIPE_WRITE_PERM_OF_BROKER: ({"brokerName": "broker-a"}, None),
    Code.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": "broker-a"}, None),
    Code.DELETE_TOPIC_IN_NAMESRV: ({"topic": "Orders"}, None),
    Code.UPDATE_NAMESRV_CONFIG: ({}, b"orderMessageEnable=true"),
}


def state_of(namesrv: GuardedNamesrv) -> list[tuple[int, bytes]]:
    """Routes, brokers, topics, settings for clients and of its own, as an administrator sees."""
    asked: list[tuple[int, dict[str, str]]] = [
        (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "Orders"}),
        (Code.GET_BROKER_CLUSTER_INFO, {}),
        (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"}),
        (Code.GET_NAMESRV_CONFIG, {}),
    ]
    answers = [
        namesrv.ask("administrator", RemotingCommand(code, fields, version=407))
        for code, fields in asked
    ]
    return [(answer.code, bytes(answer.body or b"")) for answer in answers]


@pytest.mark.parametrize("code", CHANGES)
def test_h14_only_administrators_change_a_name_server(code: int) -> None:
    namesrv = GuardedNamesrv()
    assert namesrv.ask("administrator", RemotingCommand(Code.PUT_KV_CONFIG, KEPT)).code == 0
    broker = namesrv.client()
    assert broker.request(as_account(registration(perm=7), "broker-account")).code == 0
    if code == Code.ADD_WRITE_PERM_OF_BROKER:  # it restores what was wiped
        wiped = RemotingCommand(Code.WIPE_WRITE_PERM_OF_BROKER, CHANGES[code][0])
        assert namesrv.ask("administrator", wiped).code == 0
    before, (fields, body) = state_of(namesrv), CHANGES[code]
    assert {code for code, _ in before} == {0}
    for account, host in (
        ("broker-account", "192.0.2.50"),
        ("shop-account", "192.0.2.50"),
        (None, WHITE),
    ):
        answer = namesrv.ask(account, RemotingCommand(code, fields, body), host=host)
        assert "Need admin permission" in (answer.remark or "")
        assert state_of(namesrv) == before
    assert namesrv.ask("administrator", RemotingCommand(code, fields, body)).code == 0
    assert state_of(namesrv) != before


@pytest.mark.parametrize("account", ["broker-account", None])
def test_h14_only_administrators_see_a_name_servers_settings(
    account: str | None,
) -> None:
    host = "192.0.2.50" if account else WHITE
    asked = RemotingCommand(Code.GET_NAMESRV_CONFIG, {})
    answer = GuardedNamesrv().ask(account, asked, host=host)
    assert "Need admin permission" in (answer.remark or "") and not answer.body


def test_h14_refusals_are_shown_to_administrators() -> None:
    namesrv = GuardedNamesrv()
    asked = RemotingCommand(Code.GET_ACL_REFUSALS)
    assert namesrv.ask("shop-account", registration(), host="192.0.2.60").code == 1
    assert "Need admin permission" in (namesrv.ask("monitor-account", asked).remark or "")
    answer = namesrv.ask("administrator", asked)
    found = [
        (each.account, each.code, each.count, each.address)
        for each in AclRefusals.decode(answer.body).refusals
    ]
    assert found == [
        ("shop-account", 103, 1, "192.0.2.60"),
        ("monitor-account", Code.GET_ACL_REFUSALS, 1, "192.0.2.50"),
    ]


def test_h14_routes_of_trace_and_reply_topics_need_no_permission() -> None:
    strict = NamesrvConfig(
        acl_enable=True, acl_file=ACL_PATH, kv_config_path="/kv", acl_route_perm_enable=True
    )
    namesrv = GuardedNamesrv(strict)
    for topic, said in (
        ("RMQ_SYS_TRACE_TOPIC", "No topic route info"),
        ("DefaultCluster_REPLY_TOPIC", "No topic route info"),
        ("Orders", "No default permission for topic:Orders"),
    ):
        asked = RemotingCommand(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        assert said in (namesrv.ask("nothing-account", asked).remark or "")


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


def test_h15_two_official_brokers_are_distinguished_by_their_hosts() -> None:
    namesrv = GuardedNamesrv()
    assert namesrv.client("192.0.2.7").request(registration()).code == 0
    assert namesrv.ask("broker-account", registration(THERE)).code == 1
    assert namesrv.client("192.0.2.7").request(registration(THERE)).code == 0


def test_h15_an_allowlisted_address_does_not_count_as_the_named_account() -> None:
    namesrv = GuardedNamesrv()
    assert namesrv.client().request(signed(registration(), "broker-account")).code == 0
    unsigned = registration(THERE)
    assert unsigned.fields is not None
    unsigned.fields["AccessKey"] = "broker-account"
    assert namesrv.ask(None, unsigned, host="192.0.2.7").code == 1
    assert THERE.encode() not in route(namesrv)


@pytest.mark.parametrize(("holder", "taker"), TAKERS)
@pytest.mark.parametrize("way", ["an invented broker says goodbye there", "one comes and hangs up"])
def test_h15_a_live_brokers_address_is_not_taken_over(
    way: str, holder: Asker, taker: Asker
) -> None:
    namesrv = GuardedNamesrv()
    (account, host), (other_account, other_host) = holder, taker
    own, other = namesrv.client(host), namesrv.client(other_host)
    assert own.request(as_account(registration(), account)).code == 0
    assert namesrv.ask(other_account, registration(THERE), host=other_host).code == 1
    tried = goodbye(HERE, "evil") if way.startswith("an invented") else registration(HERE, "evil")
    answer = other.request(as_account(tried, other_account))
    assert (answer.code, f"the broker at {HERE} is alive" in (answer.remark or "")) == (1, True)
    other.close()
    namesrv.system.drain()
    assert namesrv.ask(other_account, registration(THERE), host=other_host).code == 1
    assert HERE.encode() in route(namesrv) and THERE.encode() not in route(namesrv)
    assert own.request(as_account(goodbye(), account)).code == 0, "whose it is may go"
    assert namesrv.ask(other_account, registration(THERE), host=other_host).code == 0


@pytest.mark.parametrize(("holder", "taker"), TAKERS)
def test_h15_another_account_cannot_keep_a_silent_broker_alive(holder: Asker, taker: Asker) -> None:
    namesrv = GuardedNamesrv()
    assert namesrv.ask(holder[0], registration(), host=holder[1]).code == 0
    namesrv.system.advance(100_000)
    for name in ("broker-a", "evil"):
        asked = namesrv.ask(taker[0], question(HERE, name), host=taker[1])
        assert (asked.code, asked.body) == (1, None)
    namesrv.system.advance(31_000)
    assert HERE.encode() not in route(namesrv)
    assert namesrv.ask(taker[0], registration(HERE, "evil"), host=taker[1]).code == 0
    assert namesrv.ask(holder[0], registration(), host=holder[1]).code == 1


def test_h15_the_first_of_two_concurrent_registrations_owns_the_name() -> None:
    """Neither is alive when they come; long ones are read elsewhere, one after the other."""
    namesrv = GuardedNamesrv()
    codes: list[int] = []
    for account, name in (("broker-account", "broker-a"), ("other-broker", "evil")):
        command = as_account(registration(HERE, name, topics=3000), account)
        namesrv.client().start(command, lambda answer: codes.append(answer.code))
    namesrv.system.drain()
    assert codes == [0, 1]
    assert b'"broker-a"' in route(namesrv) and b"evil" not in route(namesrv)
    assert namesrv.ask("other-broker", registration(THERE, "evil", topics=3000)).code == 0


def test_h15_broker_ownership_is_not_evicted_by_other_brokers() -> None:
    namesrv = GuardedNamesrv()
    assert namesrv.ask("broker-account", registration()).code == 0
    for number in range(300):
        name = f"evil-{number}"
        assert namesrv.ask("other-broker", registration(THERE, name)).code == 0
        assert namesrv.ask("other-broker", goodbye(THERE, name)).code == 0
    assert namesrv.ask("other-broker", registration(THERE)).code == 1
    assert namesrv.ask("other-broker", registration(HERE, "evil")).code == 1


@pytest.mark.parametrize(("account", "host"), [("broker-account", "192.0.2.50"), (None, WHITE)])
def test_h15_a_broker_can_reconnect_and_change_its_name(account: str | None, host: str) -> None:
    """At its address, while its old connection is still there."""
    namesrv = GuardedNamesrv()
    before, after = namesrv.client(host), namesrv.client(host)
    assert before.request(as_account(registration(), account)).code == 0
    for name, broker_id in (("broker-a", 0), ("broker-a", 1), ("renamed", 0)):
        again = as_account(registration(HERE, name, broker_id), account)
        assert after.request(again).code == 0
        assert after.request(as_account(question(HERE, name), account)).code == 0
    before.close()
    namesrv.system.drain()
    assert b'"renamed"' in route(namesrv), "it is where it said so last"
    after.close()
    namesrv.system.drain()
    assert namesrv.ask("other-broker", registration()).code == 0


def test_h15_official_brokers_may_share_a_host_or_a_name() -> None:
    namesrv = GuardedNamesrv()
    brokers = [
        (WHITE, "10.0.0.1:10911", "broker-a", 0),
        (OTHER_WHITE, "10.0.0.2:10911", "broker-a", 1),
        ("fd00::7", "[fd00::7]:10911", "broker-a", 2),
        (WHITE, "10.0.0.1:10921", "broker-b", 0),
    ]
    for host, address, name, broker_id in brokers * 2:
        command = registration(address, name, broker_id)
        assert namesrv.ask(None, command, host=host).code == 0
    assert all(address.encode() in route(namesrv) for _, address, _, _ in brokers)
    assert namesrv.ask(None, registration("[fd00::7]:10911", "x"), host=WHITE).code == 1
    assert namesrv.ask(None, goodbye("10.0.0.1:10921", "broker-b"), host=WHITE).code == 0
    assert b"10.0.0.1:10911" in route(namesrv)


@pytest.mark.parametrize("address", ["x\n:1", "x", "x:", ":1", "a b:1", "x:1\n", "x:100000", ""])
def test_h15_ownership_is_by_host_and_port(address: str) -> None:
    answer = GuardedNamesrv().ask("broker-account", registration(address))
    assert (answer.code, answer.remark) == (1, "brokerAddr must be host:port")


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


def test_h16_an_unauthenticated_slave_gets_no_log() -> None:
    made = GuardedBroker(1)
    assert not connects(made, "198.51.100.1")
    assert made.broker.replicas.link_count == 0


def test_h16_a_slave_replicates_from_an_allowlisted_address_or_authenticated() -> None:
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


def test_h16_a_list_of_addresses_excludes_all_others() -> None:
    made = with_accounts(1, ACCOUNTS, {"ha_allowed_addresses": "10.0.0.*"})
    assert connects(made, "10.0.0.9")
    assert not connects(made, "192.0.2.7")


# --- H17: settings


@pytest.mark.parametrize(
    "key",
    [
        *("aclEnable", "namesrvAddr", "rmqAddressServerDomain", "haMasterAddress", "brokerIP1"),
        *("brokerIP2", "bindAddress", "listenPort", "brokerAccessKey", "brokerSecretKey"),
        *("aclWhiteListAdmin", "rocketmq.acl.plain.file", "haAllowedAddresses", "haBindAddress"),
    ],
)
def test_h17_no_request_takes_a_broker_from_its_operator(key: str) -> None:
    made = GuardedBroker(1)
    answer = made.ask(RemotingCommand(Code.UPDATE_BROKER_CONFIG, body=f"{key}=x\n".encode()))
    assert (answer.code, answer.remark) == (16, REFUSED)
