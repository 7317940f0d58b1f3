"""Official clients and tools with accounts, at our servers with access control."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.mqadmin import Mqadmin, java_command, mqadmin
from tests.compat.servers import CLUSTER, Broker, OurNameServer
from tests.compat.toolchain import Java

ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: secret-admin, admin: true}
- {accessKey: brokers-account, secretKey: secret-brokers, broker: true}
- {accessKey: shop-account, secretKey: secret-shop, topicPerms: [Guarded=PUB|SUB],
   groupPerms: [billing=SUB]}
- {accessKey: reader-account, secretKey: secret-reader, topicPerms: [Guarded=SUB]}
"""
ACL = {"aclEnable": "true"}
BROKERS_ACCOUNT = {"brokerAccessKey": "brokers-account", "brokerSecretKey": "secret-brokers"}
TIMEOUT_S = 120
DENIED_S, ALLOWED_S = "3", "60"

Client = Callable[..., str]


@pytest.fixture(scope="module")
def guarded(scratch: Path, make_broker: MakeBroker) -> Iterator[Broker]:
    """Our broker and our name server, each with its own copy of the accounts."""
    folder = scratch / "guarded"
    for each in ("name-server", "broker"):
        (folder / each).mkdir(parents=True)
        (folder / each / "plain_acl.yml").write_text(ACCOUNTS)
    name_server = OurNameServer(folder / "name-server")
    name_server.settings |= ACL
    settings = ACL | BROKERS_ACCOUNT
    broker = make_broker("ours", folder / "broker", name_server, **settings)
    broker.asked_as = "administrator", "secret-admin"
    with name_server, broker:
        yield broker


@pytest.fixture(scope="module")
def run(java_tools: Java, scratch: Path, guarded: Broker) -> Mqadmin:
    """mqadmin with the administrator's account in conf/tools.yml."""
    folder = scratch / "guarded-tools"
    made = mqadmin(java_tools, folder, guarded.name_server.address)
    (folder / "home" / "conf" / "tools.yml").write_text(
        "accessKey: administrator\nsecretKey: secret-admin\n"
    )
    return made


@pytest.fixture(scope="module")
def client(java_tools: Java, scratch: Path, guarded: Broker, run: Mqadmin) -> Client:
    """The official client with an account; what it says."""
    assert run("updateTopic", "-c", CLUSTER, "-t", "Guarded", "-r", "2", "-w", "2").returncode == 0
    program = java_command(java_tools, scratch / "guarded-client", "interop.Guarded")

    def talk(account: str, secret: str, group: str, wait_s: str) -> str:
        done = subprocess.run(
            [*program, guarded.name_server.address, account, secret, "Guarded", group, wait_s],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return talk


def test_an_account_sends_batches_and_consumes(client: Client) -> None:
    said = client("shop-account", "secret-shop", "billing", ALLOWED_S)
    assert "sent SEND_OK" in said and "batch SEND_OK" in said and "consumed all" in said


@pytest.mark.whole
@pytest.mark.parametrize(
    ("account", "secret", "text"),
    [
        ("reader-account", "secret-reader", "No default permission for topic:Guarded"),
        ("shop-account", "another-secret", "No route info of this topic: Guarded"),
        ("stranger-key", "another-secret", "No route info of this topic: Guarded"),
    ],
)
def test_others_are_told_why_as_by_the_original(
    client: Client, account: str, secret: str, text: str
) -> None:
    said = client(account, secret, "others", DENIED_S)
    assert "refused " in said and text in said and "consumed 0" in said


def test_mqadmin_changes_and_shows_accounts(run: Mqadmin, guarded: Broker) -> None:
    def printed(command: str, *options: str) -> str:
        done = run(command, *options)
        assert done.returncode == 0 and "Exception" not in done.stderr, done.stderr
        return done.stdout

    address = guarded.address
    made = ("-a", "new-account", "-s", "secret-new", "-t", "T=PUB,U=DENY", "-g", "G=SUB")
    said = printed(
        "updateAclConfig", "-b", address, *made, "-i", "DENY", "-u", "SUB", "-m", "false"
    )
    assert f"create or update plain access config to {address} success." in said
    shown = printed("getAclConfig", "-b", address)
    assert "new-account" in shown and "[T=PUB, U=DENY]" in shown and "secret-" not in shown
    said = printed("updateGlobalWhiteAddr", "-b", address, "-g", "10.10.154.1,10.10.154.2")
    assert "success" in said
    assert "[10.10.154.1, 10.10.154.2]" in printed("getAclConfig", "-c", CLUSTER)
    version = printed("clusterAclConfigVersion", "-c", CLUSTER)
    assert "plain_acl.yml" in version and "get cluster's plain access config version" in version
    said = printed("deleteAclConfig", "-b", address, "-a", "new-account")
    assert "success" in said and "new-account" not in printed("getAclConfig", "-b", address)
    refused = run("updateAclConfig", "-b", address, "-a", "short", "-s", "secret-new")
    assert "length should longer than 6" in refused.stdout + refused.stderr


@pytest.mark.whole
def test_an_official_broker_comes_in_by_its_white_address(
    scratch: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> None:
    folder = scratch / "guarded-official"
    (folder / "name-server").mkdir(parents=True)
    accounts = "globalWhiteRemoteAddresses: [127.0.0.1]\n" + ACCOUNTS
    (folder / "name-server" / "plain_acl.yml").write_text(accounts)
    name_server = make_name_server("ours", folder / "name-server")
    name_server.settings |= ACL
    with name_server, make_broker("official", folder / "broker", name_server) as broker:
        assert broker.address, "it serves once the name server knows it"
