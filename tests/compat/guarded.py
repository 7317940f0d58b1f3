"""Our servers with access control, the accounts that they know, and how official clients come.

The accounts may use topics that are named for a client (`client_cases.topics_of`), with groups
named after them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.signature import Credentials
from tests.compat.agent import Agent, closing, go_client, java_agent
from tests.compat.client_cases import OFTEN, TRACES
from tests.compat.conftest import MakeBroker
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route
from tests.compat.servers import Broker, OurNameServer, official_home
from tests.support.certificates import Certificates
from troupemq import Admin, Tls

ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: secret-admin, admin: true}
- {accessKey: brokers-account, secretKey: secret-brokers, broker: true}
- {accessKey: shop-account, secretKey: secret-shop, topicPerms: [TOPICS], groupPerms: [GROUPS]}
- {accessKey: shop-over-tls, secretKey: secret-shop, topicPerms: [TOPICS], groupPerms: [GROUPS],
   requireTls: true}
- {accessKey: reader-account, secretKey: secret-reader, topicPerms: [READS],
   groupPerms: [readers=SUB]}
- {accessKey: audit-account, secretKey: secret-audit, topicPerms: [RMQ_SYS_TRACE_TOPIC=SUB],
   groupPerms: [auditors=SUB]}
"""
ACL = {"aclEnable": "true"}
BROKERS_ACCOUNT = {"brokerAccessKey": "brokers-account", "brokerSecretKey": "secret-brokers"}
ADMINISTRATOR = ("administrator", "secret-admin")
SHOP, READER = ("shop-account", "secret-shop"), ("reader-account", "secret-reader")
AUDITOR = ("audit-account", "secret-audit")
SHOP_OVER_TLS = ("shop-over-tls", "secret-shop")
WRONG, STRANGER = ("shop-account", "not-the-secret"), ("nobody-knows-me", "some-secret")
WHITE = "globalWhiteRemoteAddresses: [127.0.0.1]\n"


def accounts(topics: Sequence[str], more: str = "") -> str:
    """The file of both servers."""
    text = ACCOUNTS.replace("TOPICS", ", ".join(f"{topic}=PUB|SUB" for topic in topics))
    text = text.replace("READS", ", ".join(f"{topic}=SUB" for topic in topics))
    return more + text.replace("GROUPS", ", ".join(f"of-{topic}=SUB" for topic in topics))


def write_accounts(folder: Path, text: str) -> None:
    """Write the accounts where a server with its settings in that folder reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plain_acl.yml").write_text(text)
    (folder / "plain_acl.yml").chmod(0o600)


def write_tools(folder: Path, account: tuple[str, str]) -> None:
    """The account that mqadmin finds in its home folder."""
    text = "accessKey: {}\nsecretKey: {}\n".format(*account)
    (official_home(folder) / "conf" / "tools.yml").write_text(text)


@contextmanager
def guarded_servers(
    folder: Path,
    make_broker: MakeBroker,
    made: Certificates,
    topics: Sequence[str],
    *,
    settings: Mapping[str, str] = {},
    names_are_guarded: bool = True,
    more_accounts: str = "",
    tls: Tls | None = None,
) -> Iterator[Broker]:
    """Our broker and our name server, each with its own copy of the accounts, and the topics.

    They have a certificate: who comes with TLS gets it. `tls`: who asks them for the test.
    """
    for each in ("name-server", "broker"):
        write_accounts(folder / each, accounts(topics) + more_accounts)
    both = {**made.settings(), **settings}
    name_server = OurNameServer(folder / "name-server")
    name_server.settings |= both | (ACL if names_are_guarded else {})
    own = ACL | BROKERS_ACCOUNT | OFTEN | TRACES
    broker = make_broker("ours", folder / "broker", name_server, **own, **both)
    broker.asked_as = ADMINISTRATOR
    if tls is not None:
        broker.asked_over = made.calls(shows=made.files("client", "client-1"))
    with name_server, broker:
        credentials = Credentials(*ADMINISTRATOR)
        with Admin(name_server.address, credentials=credentials, tls=tls) as admin:
            for topic in topics:
                admin.create_topic(topic, 2)
        for topic in topics:
            wait_until(lambda: is_known(broker, topic), f"a route to {topic}")  # noqa: B023
        yield broker


def is_known(broker: Broker, topic: str) -> bool:
    return has_route(broker.name_server.address, topic, broker.asked_as, broker.asked_over)


def java_options(made: Certificates, more: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the options of a JVM with TLS that trusts the issuer of our certificates."""
    path = made.folder / "tls.properties"
    lines = {
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": made.trust,
        **(more or {}),
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return ("-Dtls.enable=true", f"-Dtls.config.file={path}")


@contextmanager
def official_client(
    request: pytest.FixtureRequest, name: str, folder: Path, broker: Broker, *options: str
) -> Iterator[Agent]:
    """`java`, `java-5` or `go`, or with `-tls` behind it; `options` are a Java's."""
    folder.mkdir(parents=True)
    if name.startswith("go"):
        program = "go_tls_program" if name.endswith("tls") else "go_program"
        agent = go_client(name, request.getfixturevalue(program), folder, broker)
    else:
        tools = "java_5_tools" if name.startswith("java-5") else "java_tools"
        agent = java_agent(name, request.getfixturevalue(tools), folder, broker, *options)
    with closing(agent):
        yield agent
