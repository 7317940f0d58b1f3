"""Official clients and tools with accounts, with TLS and without, at our guarded servers.

One Java, or one program of Go, for each client: it plays the account that may, and those that may
not, with groups of their own. The same ports serve those that come with TLS, as an account that may
not come otherwise.
"""

from collections.abc import Iterator
from pathlib import Path
from subprocess import run as run_process
from sys import executable

import pytest

from protocol.signature import Credentials
from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.agent import Agent, closing, go_client, java_agent
from tests.compat.client_cases import (
    OFTEN,
    TRACES,
    asks_and_is_answered,
    consumes_in_order,
    has_transactions,
    numbered,
    sends_in_all_ways_and_consumes,
    topics_of,
    writes_traces,
)
from tests.compat.conftest import SERVER_KIND, MakeBroker, MakeNameServer
from tests.compat.inhabited import inhabited
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route
from tests.compat.servers import CLUSTER, Broker, NameServer, OurNameServer, official_home
from tests.compat.test_every_mqadmin_command import GROUP, KEY, TOPIC, commands
from tests.compat.toolchain import Java
from tests.support.certificates import Certificates
from troupemq import Admin, Message, Producer, SendStatus
from troupemq.client.errors import RequestTimeout

pytestmark = pytest.mark.slow(seconds=3)

ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: secret-admin, admin: true}
- {accessKey: brokers-account, secretKey: secret-brokers, broker: true}
- {accessKey: shop-account, secretKey: secret-shop, topicPerms: [TOPICS], groupPerms: [GROUPS]}
- {accessKey: shop-over-tls, secretKey: secret-shop, topicPerms: [TOPICS], groupPerms: [GROUPS],
   requireTls: true}
- {accessKey: reader-account, secretKey: secret-reader, topicPerms: [READS],
   groupPerms: [readers=SUB]}
"""
ACL = {"aclEnable": "true"}
BROKERS_ACCOUNT = {"brokerAccessKey": "brokers-account", "brokerSecretKey": "secret-brokers"}
ADMINISTRATOR = ("administrator", "secret-admin")
SHOP, READER = ("shop-account", "secret-shop"), ("reader-account", "secret-reader")
SHOP_OVER_TLS = ("shop-over-tls", "secret-shop")
WRONG, STRANGER = ("shop-account", "not-the-secret"), ("nobody-knows-me", "some-secret")

CLIENTS = ("java", "java-5", "go", "java-tls", "java-5-tls")
"""Those with TLS show no certificate and want one of the servers; the Go client knows no TLS."""

TOPICS = [topic for client in CLIENTS for topic in topics_of(client)]
CASES = [
    "java",
    pytest.param("java-5", marks=pytest.mark.whole),
    pytest.param("go", marks=pytest.mark.whole),
    "java-tls",
    pytest.param("java-5-tls", marks=pytest.mark.whole),
]


def accounts(more: str = "") -> str:
    """The file of both servers."""
    text = ACCOUNTS.replace("TOPICS", ", ".join(f"{topic}=PUB|SUB" for topic in TOPICS))
    text = text.replace("READS", ", ".join(f"{topic}=SUB" for topic in TOPICS))
    return more + text.replace("GROUPS", ", ".join(f"of-{topic}=SUB" for topic in TOPICS))


def write_accounts(folder: Path, text: str) -> None:
    """Where a server looks whose settings lie in that folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plain_acl.yml").write_text(text)
    (folder / "plain_acl.yml").chmod(0o600)


@pytest.fixture(scope="module")
def made(scratch: Path) -> Certificates:
    return Certificates(scratch / "guarded-tls")


@pytest.fixture(scope="module")
def guarded(scratch: Path, make_broker: MakeBroker, made: Certificates) -> Iterator[Broker]:
    """Our broker and our name server, each with its own copy of the accounts, and the topics.

    They have a certificate: who comes with TLS gets it.
    """
    folder = scratch / "guarded"
    for each in ("name-server", "broker"):
        write_accounts(folder / each, accounts())
    name_server = OurNameServer(folder / "name-server")
    name_server.settings |= ACL | dict(made.settings())
    settings = ACL | BROKERS_ACCOUNT | OFTEN | TRACES | dict(made.settings())
    broker = make_broker("ours", folder / "broker", name_server, **settings)
    broker.asked_as = ADMINISTRATOR
    with name_server, broker:
        with Admin(name_server.address, credentials=Credentials(*ADMINISTRATOR)) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, 2)
        for topic in TOPICS:
            wait_until(lambda: is_known(broker, topic), f"a route to {topic}")  # noqa: B023
        yield broker


def is_known(broker: Broker, topic: str) -> bool:
    return has_route(broker.name_server.address, topic, broker.asked_as)


@pytest.fixture(scope="module")
def client(
    request: pytest.FixtureRequest,
    scratch: Path,
    guarded: Broker,
    java_tools: Java,
    made: Certificates,
) -> Iterator[Agent]:
    """An official client."""
    name, folder = request.param, scratch / f"guarded-{request.param}"
    folder.mkdir()
    if name == "go":
        agent = go_client(name, request.getfixturevalue("go_program"), folder, guarded)
    else:
        is_5 = name.startswith("java-5")
        tools = request.getfixturevalue("java_5_tools") if is_5 else java_tools
        options = java_options(made) if name.endswith("tls") else ()
        agent = java_agent(name, tools, folder, guarded, *options)
    with closing(agent):
        yield agent


@pytest.fixture(autouse=True)
def account(request: pytest.FixtureRequest) -> None:
    """A client is the shop's, over TLS that which needs it, until a test says otherwise."""
    if "client" in request.fixturenames:
        client: Agent = request.getfixturevalue("client")
        client.account = SHOP_OVER_TLS if client.name.endswith("tls") else SHOP


def java_options(made: Certificates) -> tuple[str, ...]:
    """Of a Java that comes with TLS and believes who has signed our certificates."""
    path = made.folder / "tls.properties"
    path.write_text(
        "tls.test.mode.enable=false\ntls.client.authServer=true\n"
        f"tls.client.trustCertPath={made.trust}\n"
    )
    return ("-Dtls.enable=true", f"-Dtls.config.file={path}")


each_client = pytest.mark.parametrize("client", CASES, indirect=True)


@each_client
def test_an_account_sends_in_all_ways_and_consumes(client: Agent) -> None:
    sends_in_all_ways_and_consumes(client)


@each_client
def test_an_account_consumes_in_order_and_locks_its_queues(client: Agent) -> None:
    consumes_in_order(client)


@each_client
def test_an_account_has_transactions_and_is_asked_about_them(client: Agent) -> None:
    has_transactions(client)


@each_client
def test_an_account_asks_and_is_answered(client: Agent) -> None:
    asks_and_is_answered(client)


@each_client
def test_traces_are_written_by_who_may_send_and_read_by_who_may_read_them(client: Agent) -> None:
    """An account needs no permission to write them."""
    writes_traces(client, Credentials(*ADMINISTRATOR))


DENIED = [
    (READER, "No default permission for topic:Sent"),
    (WRONG, "Check signature failed for accessKey=shop-account"),
    (STRANGER, "No acl config for nobody-knows-me"),
    (None, "No accessKey is configured"),
]
"""Who, and what the broker says, which a client of the name server's does not get to hear."""
ONLY_TLS = (SHOP_OVER_TLS, "accessKey=shop-over-tls is only allowed over TLS")


@each_client
def test_others_are_told_why_as_by_the_original(client: Agent) -> None:
    """What the name server refuses the Java clients report as a route that is not there."""
    said = {}
    denied = DENIED if client.name.endswith("tls") else [*DENIED, ONLY_TLS]
    for number, (account, text) in enumerate(denied):
        client.account = account
        try:
            client.send("sync", f"Sent-{client.name}", numbered(1), group=f"denied-{number}")
        except AssertionError as failed:
            said[text] = str(failed)
    assert said.keys() == {text for _, text in denied}
    first, *others = said.values()
    assert f"No default permission for topic:Sent-{client.name}" in first
    if client.name != "go":
        assert "CODE: 1" in first and "org.apache.rocketmq.acl.common.AclException" in first
    for text in others:
        assert any(words in text for words in ("No route info", "route", "AclException")), text


@each_client
def test_a_denied_consumer_is_silent_and_the_operator_sees_why(client: Agent) -> None:
    client.account = READER
    group, topic = f"not-for-readers-{client.name}", f"Sent-{client.name}"
    client.join("denied", group, topic)
    wait_until(lambda: group in admin(client.broker, "aclRefusals", "-c", CLUSTER), "a refusal")
    seen = admin(client.broker, "consumerStatus", "-g", group)
    assert "refused the account reader-account" in seen
    assert f"No default permission for group:{group}" in seen
    assert client.received("denied") == []
    client.leave("denied")


def admin(broker: Broker, name: str, *options: str) -> str:
    """What our command says, as the administrator."""
    key, secret = ADMINISTRATOR
    done = run_process(
        [executable, "-m", "troupemq", "admin", name, "-n", broker.name_server.address, *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"TROUPEMQ_ACCESS_KEY": key, "TROUPEMQ_SECRET_KEY": secret},
    )
    return done.stdout + done.stderr


# --- mqadmin, with the account of its conf/tools.yml


@pytest.fixture(scope="module")
def shell(
    request: pytest.FixtureRequest,
    java_tools: Java,
    scratch: Path,
    guarded: Broker,
    made: Certificates,
) -> Iterator[Shell]:
    """mqadmin as the administrator, without TLS and with it."""
    folder = scratch / f"guarded-tools-{request.param}"
    write_tools(folder, ADMINISTRATOR)
    options = java_options(made) if request.param == "tls" else ()
    with admin_shell(java_tools, folder, guarded.name_server.address, *options) as run:
        yield run


def write_tools(folder: Path, account: tuple[str, str]) -> None:
    text = "accessKey: {}\nsecretKey: {}\n".format(*account)
    (official_home(folder) / "conf" / "tools.yml").write_text(text)


@pytest.mark.parametrize("shell", ["plain", "tls"], indirect=True)
def test_mqadmin_changes_and_shows_accounts(shell: Shell, guarded: Broker) -> None:
    address = guarded.address
    made = ("-a", "new-account", "-s", "secret-new", "-t", "T=PUB,U=DENY", "-g", "G=SUB")
    said = shell("updateAclConfig", "-b", address, *made, "-i", "DENY", "-u", "SUB", "-m", "false")
    assert f"create or update plain access config to {address} success." in said
    shown = shell("getAclConfig", "-b", address)
    assert "new-account" in shown and "[T=PUB, U=DENY]" in shown and "secret-" not in shown
    said = shell("updateGlobalWhiteAddr", "-b", address, "-g", "10.10.154.1,10.10.154.2")
    assert "success" in said
    assert "[10.10.154.1, 10.10.154.2]" in shell("getAclConfig", "-c", CLUSTER)
    version = shell("clusterAclConfigVersion", "-c", CLUSTER)
    assert "plain_acl.yml" in version and "get cluster's plain access config version" in version
    said = shell("deleteAclConfig", "-b", address, "-a", "new-account")
    assert "success" in said and "new-account" not in shell("getAclConfig", "-b", address)
    refused = shell("updateAclConfig", "-b", address, "-a", "short", "-s", "secret-new")
    assert "length should longer than 6" in refused


@pytest.mark.whole
@pytest.mark.skipif(SERVER_KIND == "official", reason="asks ours")
@pytest.mark.parametrize("shell", ["tls"], indirect=True)
def test_every_other_command_of_mqadmin_passes_for_an_administrator_and_shows_nothing_of_it(
    shell: Shell, guarded: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(("ACCESS_KEY", "SECRET_KEY"), ADMINISTRATOR, strict=True):
        monkeypatch.setenv(f"TROUPEMQ_{name}", value)
    shell("updateTopic", "-b", guarded.address, "-t", TOPIC, "-r", "4", "-w", "4")
    wait_until(lambda: is_known(guarded, TOPIC), "a route")
    refused = {}
    with inhabited(guarded, TOPIC, GROUP, KEY) as found:
        for name, *options in commands(guarded, found, tmp_path):
            said = shell(name, *options)
            assert ADMINISTRATOR[1] not in said
            if "AclException" in said:
                refused[name] = said
    assert refused == {}


@pytest.mark.whole
def test_mqadmin_of_an_account_that_is_no_administrator_is_told_so(
    java_tools: Java, scratch: Path, guarded: Broker
) -> None:
    folder = scratch / "readers-tools"
    write_tools(folder, READER)
    with admin_shell(java_tools, folder, guarded.name_server.address) as run:
        told = {
            code: run(name, "-b", guarded.address, *options)
            for code, name, options in (
                (17, "updateTopic", ("-t", "Mine")),
                (50, "updateAclConfig", ("-a", READER[0], "-s", READER[1], "-m", "true")),
                (51, "deleteAclConfig", ("-a", ADMINISTRATOR[0])),
                (53, "updateGlobalWhiteAddr", ("-g", "*")),
                (54, "getAclConfig", ()),
                (200, "updateSubGroup", ("-g", "mine")),
                (25, "updateBrokerConfig", ("-k", "fileReservedTime", "-v", "1")),
            )
        }
    for code, said in told.items():
        need = f"Need admin permission for request code={code}, but accessKey={READER[0]} is not"
        assert need in said, (code, said)


# --- official servers beside ours, which cannot sign


WHITE = "globalWhiteRemoteAddresses: [127.0.0.1]\n"


def guarded_name_server(folder: Path, make_name_server: MakeNameServer) -> NameServer:
    write_accounts(folder, accounts(WHITE))
    name_server = make_name_server("ours", folder)
    name_server.settings |= ACL
    return name_server


@pytest.mark.whole
def test_an_official_broker_comes_in_by_its_white_address(
    scratch: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> None:
    folder = scratch / "guarded-official"
    name_server = guarded_name_server(folder / "name-server", make_name_server)
    with name_server, make_broker("official", folder / "broker", name_server) as broker:
        assert broker.address, "it serves once the name server knows it"


@pytest.mark.parametrize("by", ["white", pytest.param("haAllowed", marks=pytest.mark.whole)])
def test_an_official_slave_follows_our_master_by_its_address(
    by: str, scratch: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> None:
    """Its tables it always asks for as a white address; its log comes by either."""
    folder = scratch / f"guarded-slave-{by}"
    name_server = guarded_name_server(folder / "name-server", make_name_server)
    write_accounts(folder / "master", accounts(WHITE))
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
