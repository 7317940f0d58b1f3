"""Official clients with accounts and certificates, at servers of ours that require both.

Their mode is `enforcing` with a required certificate, also for the broker at the name server.
"""

from collections.abc import Iterator
from pathlib import Path

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
    guarded_servers,
    java_options,
    official_client,
)
from tests.compat.servers import Broker
from tests.support.certificates import Certificates
from troupemq import Tls

pytestmark = pytest.mark.slow(seconds=20)

CLIENTS = ("java", "java-5")
TOPICS = [topic for client in CLIENTS for topic in topics_of(client)]
CASES = [pytest.param("java", marks=pytest.mark.whole), "java-5"]


@pytest.fixture(scope="module")
def made(scratch: Path) -> Certificates:
    return Certificates(scratch / "acl-certificates")


@pytest.fixture(scope="module")
def tls(made: Certificates) -> Tls:
    """Return the TLS options of our own connections."""
    files = made.files("client", "client-1")
    return Tls(files.trust_path, files.cert_path, files.key_path)


@pytest.fixture(scope="module")
def strict(
    scratch: Path, make_broker: MakeBroker, made: Certificates, tls: Tls
) -> Iterator[Broker]:
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": made.trust,
        "tls.client.trustCertPath": made.trust,
        "tls.client.certPath": str(tls.certificate),
        "tls.client.keyPath": str(tls.key),
    }
    folder = scratch / "strict"
    with guarded_servers(folder, make_broker, made, TOPICS, settings=settings, tls=tls) as broker:
        yield broker


@pytest.fixture(scope="module")
def client(
    request: pytest.FixtureRequest, scratch: Path, strict: Broker, made: Certificates, tls: Tls
) -> Iterator[Agent]:
    own = {"tls.client.certPath": str(tls.certificate), "tls.client.keyPath": str(tls.key)}
    options, folder = java_options(made, own), scratch / f"strict-{request.param}"
    with official_client(request, request.param, folder, strict, *options) as agent:
        yield agent


@pytest.fixture(autouse=True)
def account(request: pytest.FixtureRequest) -> None:
    if "client" in request.fixturenames:
        request.getfixturevalue("client").account = SHOP_OVER_TLS


each_client = pytest.mark.parametrize("client", CASES, indirect=True)


@each_client
def test_an_account_with_a_certificate_sends_in_all_ways_and_consumes(client: Agent) -> None:
    sends_in_all_ways_and_consumes(client)


@each_client
def test_an_account_with_a_certificate_consumes_in_order(client: Agent) -> None:
    consumes_in_order(client)


@each_client
def test_an_account_with_a_certificate_has_transactions(client: Agent) -> None:
    has_transactions(client)


@each_client
def test_an_account_with_a_certificate_sends_requests_and_gets_replies(client: Agent) -> None:
    asks_and_is_answered(client)


@each_client
def test_an_account_with_a_certificate_writes_traces_and_another_reads_them(
    client: Agent, tls: Tls
) -> None:
    writes_traces(client, Credentials(*ADMINISTRATOR), tls)
    reads_traces(client, AUDITOR)


@each_client
def test_a_certificate_without_permission_is_refused(client: Agent) -> None:
    client.account = READER
    said = client.refused("sync", f"Sent-{client.name}", numbered(1), group="denied")
    assert f"AclException: No default permission for topic:Sent-{client.name}" in said


@pytest.mark.parametrize("name", ["java-5", pytest.param("go-tls", marks=pytest.mark.whole)])
def test_an_account_without_certificate_is_refused(
    name: str, request: pytest.FixtureRequest, strict: Broker, tmp_path: Path
) -> None:
    """A client without one is refused before its account is checked."""
    options = java_options(Certificates(tmp_path / "trust"))
    with official_client(request, name, tmp_path / "client", strict, *options) as agent:
        agent.account = SHOP
        said = agent.refused("sync", f"Sent-{CLIENTS[0]}", numbered(1), group="strangers")
        assert "AclException" not in said
        words = ["RemotingSendRequestException", "RemotingConnectException", "No route info"]
        words += ["RemotingTimeoutException", "route info not found"]
        assert any(each in said for each in words), said
