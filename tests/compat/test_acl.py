"""Official clients and tools with accounts, at our servers with access control.

One Java, or one program of Go, for each client: it plays the account that may, and those that may
not, with groups of their own.
"""

from collections.abc import Iterator
from pathlib import Path
from subprocess import run as run_process
from sys import executable

import pytest

from protocol.signature import Credentials
from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.agent import Agent, Event, closing, go_client, java_agent
from tests.compat.conftest import SERVER_KIND, MakeBroker, MakeNameServer
from tests.compat.corpus import SERIAL, Outgoing
from tests.compat.groups import receive
from tests.compat.inhabited import inhabited
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route
from tests.compat.servers import CLUSTER, Broker, NameServer, OurNameServer, official_home
from tests.compat.test_every_mqadmin_command import GROUP, KEY, TOPIC, commands
from tests.compat.test_transactions import transaction
from tests.compat.toolchain import Java
from troupemq import Admin, ConsumeFrom, Message, Producer, PullConsumer, SendStatus
from troupemq.client.errors import RequestTimeout

ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: secret-admin, admin: true}
- {accessKey: brokers-account, secretKey: secret-brokers, broker: true}
- {accessKey: shop-account, secretKey: secret-shop, topicPerms: [TOPICS], groupPerms: [GROUPS]}
- {accessKey: reader-account, secretKey: secret-reader, topicPerms: [READS],
   groupPerms: [readers=SUB]}
"""
ACL = {"aclEnable": "true"}
BROKERS_ACCOUNT = {"brokerAccessKey": "brokers-account", "brokerSecretKey": "secret-brokers"}
ADMINISTRATOR = ("administrator", "secret-admin")
SHOP, READER = ("shop-account", "secret-shop"), ("reader-account", "secret-reader")
WRONG, STRANGER = ("shop-account", "not-the-secret"), ("nobody-knows-me", "some-secret")
OFTEN = {"transactionCheckInterval": "1000", "transactionTimeOut": "1000"}
TRACES = {"traceTopicEnable": "true"}

CLIENTS = ("java", "java-5", "go")
KINDS = ("Sent", "Ordered", "Halves", "Asked")
TOPICS = [f"{kind}-{client}" for client in CLIENTS for kind in KINDS]
CASES = [
    "java",
    pytest.param("java-5", marks=pytest.mark.whole),
    pytest.param("go", marks=pytest.mark.whole),
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
def guarded(scratch: Path, make_broker: MakeBroker) -> Iterator[Broker]:
    """Our broker and our name server, each with its own copy of the accounts, and the topics."""
    folder = scratch / "guarded"
    for each in ("name-server", "broker"):
        write_accounts(folder / each, accounts())
    name_server = OurNameServer(folder / "name-server")
    name_server.settings |= ACL
    settings = ACL | BROKERS_ACCOUNT | OFTEN | TRACES
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
) -> Iterator[Agent]:
    """An official client; who it is, a test says."""
    name, folder = request.param, scratch / f"guarded-{request.param}"
    folder.mkdir()
    if name == "go":
        agent = go_client(name, request.getfixturevalue("go_program"), folder, guarded)
    else:
        tools = java_tools if name == "java" else request.getfixturevalue("java_5_tools")
        agent = java_agent(name, tools, folder, guarded)
    with closing(agent):
        yield agent


each_client = pytest.mark.parametrize("client", CASES, indirect=True)


def numbered(count: int) -> list[Outgoing]:
    return [Outgoing(f"message-{number}", b"body %d" % number) for number in range(count)]


def serials(agent: Agent, member: str) -> set[str]:
    return {event["properties"][SERIAL] for event in agent.received(member)}


@each_client
def test_an_account_sends_in_all_ways_and_consumes(client: Agent) -> None:
    client.account, topic = SHOP, f"Sent-{client.name}"
    client.join("eater", f"of-{topic}", topic)
    expected = 0
    for way in ("sync", "async", "oneway", "batch"):
        sent = client.send(way, topic, numbered(3), group=f"senders-{client.name}")
        assert {each["status"] for each in sent.results} <= {"SEND_OK"}, sent.results
        expected += 3
    receive(client, "eater", expected)
    client.leave("eater")


@each_client
def test_an_account_consumes_in_order_and_locks_its_queues(client: Agent) -> None:
    client.account, topic = SHOP, f"Ordered-{client.name}"
    client.join("orderly", f"of-{topic}", topic, orderly=True)
    client.send("sync", topic, numbered(8))
    receive(client, "orderly", 8)
    client.leave("orderly")


@each_client
def test_an_account_has_transactions_and_is_asked_about_them(client: Agent) -> None:
    client.account, topic = SHOP, f"Halves-{client.name}"
    client.join("halves", f"of-{topic}", topic)
    outcomes = [
        transaction("commit", "commit"),
        transaction("rollback", "rollback"),
        transaction("later", "unknown", checked="unknown,commit"),
    ]
    client.transact(f"halving-{client.name}", topic, outcomes)
    wait_until(lambda: serials(client, "halves") == {"commit", "later"}, "what is committed")
    assert client.checks()
    client.leave("halves")


@each_client
def test_an_account_asks_and_is_answered(client: Agent) -> None:
    """Whose replies pass through the broker's own topic for them."""
    client.account, topic = SHOP, f"Asked-{client.name}"
    client.join("replier", f"of-{topic}", topic, replies=True)
    way = "request-async" if client.name == "java-5" else "request"
    group = f"askers-{client.name}"
    answers: list[Event] = []

    def is_answered() -> bool:
        """The Go client asks its first question before it has told the broker who it is."""
        try:
            answers[:] = client.send(way, topic, numbered(1), group=group, timeout=2000).results
        except AssertionError:
            return False
        return "error" not in answers[0]

    wait_until(is_answered, "an answer")
    assert answers[0]["properties"]["MSG_TYPE"] == "reply"
    client.leave("replier")


@each_client
def test_traces_are_written_by_who_may_send_and_read_by_who_may_read_them(client: Agent) -> None:
    """An account needs no permission to write them."""
    client.account = SHOP
    client.send("sync", f"Sent-{client.name}", numbered(1), group="traced", trace=True)
    traced = f"Sent-{client.name}".encode()
    with PullConsumer(
        f"trace-readers-{client.name}",
        client.broker.name_server.address,
        begin=ConsumeFrom.FIRST_OFFSET,
        credentials=Credentials(*ADMINISTRATOR),
    ) as reader:
        reader.subscribe("RMQ_SYS_TRACE_TOPIC")
        wait_until(lambda: any(traced in each.body for each in reader.poll(1000)), "a trace")


DENIED = [
    (READER, "No default permission for topic:Sent"),
    (WRONG, "Check signature failed for accessKey=shop-account"),
    (STRANGER, "No acl config for nobody-knows-me"),
    (None, "No accessKey is configured"),
]
"""Who, and what the broker says, which a client of the name server's does not get to hear."""


@each_client
def test_others_are_told_why_as_by_the_original(client: Agent) -> None:
    """What the name server refuses the Java clients report as a route that is not there."""
    said = {}
    for number, (account, text) in enumerate(DENIED):
        client.account = account
        try:
            client.send("sync", f"Sent-{client.name}", numbered(1), group=f"denied-{number}")
        except AssertionError as failed:
            said[text] = str(failed)
    assert said.keys() == {text for _, text in DENIED}
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
def shell(java_tools: Java, scratch: Path, guarded: Broker) -> Iterator[Shell]:
    """mqadmin as the administrator."""
    folder = scratch / "guarded-tools"
    write_tools(folder, ADMINISTRATOR)
    with admin_shell(java_tools, folder, guarded.name_server.address) as run:
        yield run


def write_tools(folder: Path, account: tuple[str, str]) -> None:
    text = "accessKey: {}\nsecretKey: {}\n".format(*account)
    (official_home(folder) / "conf" / "tools.yml").write_text(text)


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
