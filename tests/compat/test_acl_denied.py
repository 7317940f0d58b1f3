"""Official clients that our broker refuses: each shows why, in the original's words.

The name server has no access control: it would be the first to refuse, and what it says the clients
report as a route that is not there (test_acl.py). Each client has a broker of its own, for wrong
signatures are counted, and too many close its door.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.agent import Agent
from tests.compat.client_cases import numbered, topics_of
from tests.compat.conftest import MakeBroker
from tests.compat.guarded import (
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
from tests.compat.test_transactions import transaction
from tests.support.certificates import Certificates

pytestmark = pytest.mark.slow(seconds=20)

CASES = [
    "java",
    "java-5",
    "go",
    *(pytest.param(name, marks=pytest.mark.whole) for name in ("java-tls", "java-5-tls", "go-tls")),
]
EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
STRANGERS = [
    (WRONG, "Check signature failed for accessKey=shop-account"),
    (STRANGER, "No acl config for nobody-knows-me"),
    (None, "No accessKey is configured"),
]
"""Accounts that are always refused, and the text of the refusal."""
ONLY_TLS = (SHOP_OVER_TLS, "accessKey=shop-over-tls is only allowed over TLS")


@pytest.fixture(scope="module")
def client(
    request: pytest.FixtureRequest, scratch: Path, make_broker: MakeBroker
) -> Iterator[Agent]:
    name = request.param
    folder = scratch / f"denied-{name}"
    made = Certificates(folder / "tls")
    options = java_options(made) if name.endswith("tls") else ()
    with (
        guarded_servers(
            folder, make_broker, made, topics_of(name), names_are_guarded=False
        ) as broker,
        official_client(request, name, folder / "client", broker, *options) as agent,
    ):
        yield agent


each_client = pytest.mark.parametrize("client", CASES, indirect=True)


@each_client
def test_a_denied_consumer_gets_nothing_and_logs_the_reason(client: Agent) -> None:
    """Before others do, so that nothing but its own heartbeat is refused in these words."""
    topic = f"Sent-{client.name}"
    client.account = SHOP_OVER_TLS if client.name.endswith("tls") else SHOP
    client.send("sync", topic, numbered(4))
    denied = {
        "not-the-shops": (client.account, "No default permission for group:not-the-shops"),
        "auditors": (AUDITOR, f"No default permission for topic:{topic}"),
        "wrong": STRANGERS[0],
        "strange": STRANGERS[1],
        "nobody-s": STRANGERS[2],
    }
    for group, (account, text) in denied.items():
        assert EXCEPTION + text not in client.logged()
        client.account = account
        client.join(group, group, topic, orderly=group == "auditors")
        wait_until(lambda: EXCEPTION + text in client.logged(), f"{group} says why")  # noqa: B023
        assert client.received(group) == []
        client.leave(group)


@each_client
def test_a_denied_send_is_refused_in_every_form(client: Agent) -> None:
    """The requester only learns that no reply came.

    The Java clients usually drop the reason before they have it; the Go client waits for its
    timeout.
    """
    client.account = READER
    topic = f"Sent-{client.name}"
    said = {
        way: client.refused(way, topic, numbered(2), group=way, timeout=500)
        for way in ("sync", "batch", "async", "request", "request-async")
    }
    with pytest.raises(AssertionError) as failed:
        client.transact("halves", topic, [transaction("half", "commit")])
    said["transaction"] = str(failed.value)
    no_reply = said.pop("request")
    assert f"send request message to <{topic}> fail" in no_reply or "wait reply" in no_reply
    text = f"{EXCEPTION}No default permission for topic:{topic}"
    assert {way: words for way, words in said.items() if text not in words} == {}


@each_client
def test_unknown_accounts_are_refused_with_a_reason(client: Agent) -> None:
    topic = f"Sent-{client.name}"
    strangers = STRANGERS if client.name.endswith("tls") else [*STRANGERS, ONLY_TLS]
    for number, (account, text) in enumerate(strangers):
        client.account = account
        said = client.refused("sync", topic, numbered(1), group=f"strangers-{number}")
        assert EXCEPTION + text in said
