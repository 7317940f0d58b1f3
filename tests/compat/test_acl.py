"""Official clients with accounts, with TLS and without, at our guarded servers.

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
from tests.compat.agent import Agent
from tests.compat.client_cases import (
    asks_and_is_answered,
    consumes_in_order,
    has_transactions,
    numbered,
    reads_traces,
    sends_in_all_ways_and_consumes,
    topics_of,
    writes_traces,
)
from tests.compat.conftest import MakeBroker
from tests.compat.guarded import (
    ADMINISTRATOR,
    AUDITOR,
    READER,
    SHOP,
    SHOP_OVER_TLS,
    STRANGER,
    WRONG,
    guarded_servers,
    java_options,
    official_client,
)
from tests.compat.patience import wait_until
from tests.compat.servers import CLUSTER, Broker
from tests.support.certificates import Certificates

pytestmark = pytest.mark.slow(seconds=45)

CASES = [
    "java",
    "java-5",
    "go",
    "java-tls",
    pytest.param("java-5-tls", marks=pytest.mark.whole),
    pytest.param("go-tls", marks=pytest.mark.whole),
]
"""Clients; those with TLS show no certificate, and the Java clients among them require the
server's.
"""


@pytest.fixture(scope="module")
def client(
    request: pytest.FixtureRequest, scratch: Path, make_broker: MakeBroker
) -> Iterator[Agent]:
    """An official client, and servers of its own: wrong signatures are counted, and too many close
    the door."""
    name = request.param
    folder = scratch / f"guarded-{name}"
    made = Certificates(folder / "tls")
    options = java_options(made) if name.endswith("tls") else ()
    with (
        guarded_servers(folder, make_broker, made, topics_of(name)) as broker,
        official_client(request, name, folder / "client", broker, *options) as agent,
    ):
        yield agent


@pytest.fixture(autouse=True)
def account(client: Agent) -> None:
    """A client is the shop's, over TLS that which needs it, until a test says otherwise."""
    client.account = SHOP_OVER_TLS if client.name.endswith("tls") else SHOP


each_client = pytest.mark.parametrize("client", CASES, indirect=True)


@each_client
def test_an_account_sends_in_all_ways_and_consumes(client: Agent) -> None:
    sends_in_all_ways_and_consumes(client)


@each_client
def test_an_account_consumes_in_order_and_locks_its_queues(client: Agent) -> None:
    consumes_in_order(client)


@each_client
def test_an_account_sends_transactions_and_answers_check_backs(client: Agent) -> None:
    has_transactions(client)


@each_client
def test_an_account_sends_requests_and_gets_replies(client: Agent) -> None:
    asks_and_is_answered(client)


@each_client
def test_traces_are_written_by_senders_and_read_with_permission(client: Agent) -> None:
    """An account needs no permission to write them."""
    writes_traces(client, Credentials(*ADMINISTRATOR))


@each_client
def test_a_consumers_traces_are_read_by_an_auditors_account(client: Agent) -> None:
    reads_traces(client, AUDITOR)


DENIED = [
    (READER, "No default permission for topic:Sent"),
    (WRONG, "Check signature failed for accessKey=shop-account"),
    (STRANGER, "No acl config for nobody-knows-me"),
    (None, "No accessKey is configured"),
]
"""Accounts and the broker's text, which a client refused by the name server does not get."""
ONLY_TLS = (SHOP_OVER_TLS, "accessKey=shop-over-tls is only allowed over TLS")


@pytest.mark.parametrize(
    "client",
    [each if each != "go" else pytest.param(each, marks=pytest.mark.whole) for each in CASES],
    indirect=True,
)
def test_other_accounts_are_refused_with_the_originals_texts(client: Agent) -> None:
    """Clients report the name server's refusal as a missing route; test_acl_denied.py has the
    broker's texts. The Go client tries for half a minute.
    """
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
    if not client.name.startswith("go"):
        assert "CODE: 1" in first and "org.apache.rocketmq.acl.common.AclException" in first
    words = "route info not found"
    if not client.name.startswith("go"):
        words = f"No route info of this topic: Sent-{client.name}"
    assert [text for text in others if words not in text] == []


@each_client
def test_a_denied_consumer_gets_nothing_and_the_operator_sees_the_reason(client: Agent) -> None:
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
    """Return the output of our command, run as the administrator."""
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
