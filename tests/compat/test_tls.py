"""Official clients and tools with TLS at our servers, and ours at official ones.

Ours require TLS and a certificate; the official ones run as installed, in test mode. Only the
unreleased Go client after v2.1.2 supports TLS; it shows no certificate.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess, run
from sys import executable

import pytest

from tests.compat.agent import Agent
from tests.compat.client_cases import (
    OFTEN,
    TRACES,
    asks_and_is_answered,
    consumes_in_order,
    has_transactions,
    numbered,
    reads_traces,
    sends_in_all_ways_and_consumes,
    topics_of,
    writes_traces,
)
from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.guarded import official_client
from tests.compat.mqadmin import MAIN_CLASS, TIMEOUT_S, java_command
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route, knows_broker
from tests.compat.servers import CLUSTER, HOST, Broker, OfficialBroker, OurNameServer, accepts
from tests.compat.toolchain import Java
from tests.support.certificates import Certificates
from troupemq import Admin, ConsumeFrom, Message, Producer, PullConsumer, SendStatus, Tls

pytestmark = pytest.mark.slow(seconds=4)

TOPIC = "Sent-java"
TOPICS = [topic for client in ("java", "java-5", "go-tls") for topic in topics_of(client)]
CASES = ["java", pytest.param("java-5", marks=pytest.mark.whole)]


@pytest.fixture(scope="module")
def made(scratch: Path) -> Certificates:
    return Certificates(scratch / "tls")


@pytest.fixture(scope="module")
def tls(made: Certificates) -> Tls:
    """Return the TLS options of our own connections."""
    files = made.files("client", "client-1")
    return Tls(files.trust_path, files.cert_path, files.key_path)


@pytest.fixture(scope="module")
def encrypted(
    scratch: Path, make_broker: MakeBroker, made: Certificates, tls: Tls
) -> Iterator[Broker]:
    settings = {
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": made.trust,
        "tls.client.certPath": str(tls.certificate),
        "tls.client.keyPath": str(tls.key),
    }
    with encrypted_servers(scratch / "encrypted", make_broker, made, tls, settings) as broker:
        yield broker


@contextmanager
def encrypted_servers(
    folder: Path,
    make_broker: MakeBroker,
    made: Certificates,
    tls: Tls,
    more: Mapping[str, str] = {},
) -> Iterator[Broker]:
    """Broker and name server of ours that require TLS."""
    settings = {**made.settings(), "tls.server.mode": "enforcing", **more}
    settings["tls.client.trustCertPath"] = made.trust
    name_server = OurNameServer(folder / "name-server")
    name_server.settings |= settings
    broker = make_broker("ours", folder / "broker", name_server, **settings, **OFTEN, **TRACES)
    broker.asked_over = made.calls(shows=made.files("client", "client-1"))
    with name_server, broker:
        address = name_server.address
        with Admin(address, tls=tls) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, 2)
        for topic in TOPICS:

            def is_known(topic: str = topic) -> bool:
                return has_route(address, topic, tls=broker.asked_over)

            wait_until(is_known, f"a route to {topic}")
        yield broker


@pytest.fixture(scope="module")
def shows(made: Certificates, tls: Tls) -> tuple[str, ...]:
    """The options of a Java that shows a certificate and wants one."""
    path = made.folder / "tls.properties"
    path.write_text(properties(made, tls))
    return ("-Dtls.enable=true", f"-Dtls.config.file={path}")


def properties(made: Certificates, tls: Tls) -> str:
    return (
        "tls.test.mode.enable=false\ntls.client.authServer=true\n"
        f"tls.client.trustCertPath={made.trust}\n"
        f"tls.client.certPath={tls.certificate}\ntls.client.keyPath={tls.key}\n"
    )


@pytest.fixture(scope="module")
def client(
    request: pytest.FixtureRequest, scratch: Path, encrypted: Broker, shows: tuple[str, ...]
) -> Iterator[Agent]:
    """A Java that shows a certificate."""
    folder = scratch / f"encrypted-{request.param}"
    with official_client(request, request.param, folder, encrypted, *shows) as agent:
        yield agent


each_client = pytest.mark.parametrize("client", CASES, indirect=True)


@each_client
def test_a_client_with_a_certificate_sends_and_consumes(client: Agent) -> None:
    sends_in_all_ways_and_consumes(client)


@each_client
def test_a_client_with_a_certificate_consumes_in_order(client: Agent) -> None:
    consumes_in_order(client)


@each_client
def test_a_client_with_a_certificate_has_transactions(client: Agent) -> None:
    has_transactions(client)


@each_client
def test_a_client_with_a_certificate_sends_requests_and_gets_replies(client: Agent) -> None:
    asks_and_is_answered(client)


@each_client
def test_a_client_with_a_certificate_writes_traces_and_reads_them(client: Agent, tls: Tls) -> None:
    writes_traces(client, tls=tls)
    reads_traces(client)


@pytest.mark.parametrize("name", CASES)
def test_a_client_without_tls_or_certificate_is_refused(
    name: str, request: pytest.FixtureRequest, encrypted: Broker, tmp_path: Path
) -> None:
    for number, options in enumerate(((), ("-Dtls.enable=true",))):
        folder = tmp_path / str(number)
        with official_client(request, name, folder, encrypted, *options) as client:
            is_turned_away(client)


def is_turned_away(client: Agent) -> None:
    said = client.refused("sync", TOPIC, numbered(1), group="strangers")
    words = ["RemotingSendRequestException", "RemotingConnectException", "No route info"]
    words.append("RemotingTimeoutException")  # on a busy machine
    words.append("route info not found")  # of Go
    assert any(each in said for each in words), said


@pytest.mark.whole
def test_an_unreleased_go_client_connects_with_tls_without_a_certificate(
    request: pytest.FixtureRequest,
    make_broker: MakeBroker,
    made: Certificates,
    tls: Tls,
    encrypted: Broker,
    tmp_path: Path,
) -> None:
    with (
        encrypted_servers(tmp_path / "servers", make_broker, made, tls) as broker,
        official_client(request, "go-tls", tmp_path / "client", broker) as client,
    ):
        sends_in_all_ways_and_consumes(client)
        consumes_in_order(client)
        has_transactions(client)
        asks_and_is_answered(client)
        writes_traces(client, tls=tls)
        reads_traces(client)
        with official_client(request, "go", tmp_path / "plain", broker) as plain:
            is_turned_away(plain)
    with official_client(request, "go-tls", tmp_path / "no-certificate", encrypted) as client:
        is_turned_away(client)


def mqadmin_with(
    java: Java, folder: Path, options: tuple[str, ...], *arguments: str
) -> CompletedProcess[str]:
    program, *rest = java_command(java, folder, MAIN_CLASS)
    return run(
        [program, *options, *rest, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_mqadmin_and_our_commands_work_with_tls(
    java_tools: Java,
    encrypted: Broker,
    shows: tuple[str, ...],
    made: Certificates,
    tls: Tls,
    tmp_path: Path,
) -> None:
    address = encrypted.name_server.address
    done = mqadmin_with(java_tools, tmp_path, shows, "clusterList", "-n", address)
    assert encrypted.address in done.stdout, done.stdout + done.stderr
    files = ("--tls-ca", made.trust, "--tls-cert", tls.certificate, "--tls-key", tls.key)
    ours = [executable, "-m", "troupemq", "admin", "clusterList", "-n", address]
    for options in (files, ("--tls-config", str(made.folder / "tls.properties"))):
        done = run([*ours, *options], capture_output=True, text=True, timeout=60, check=False)
        assert encrypted.address in done.stdout and CLUSTER in done.stdout, done.stderr
    refused = run(ours, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr


@pytest.mark.whole
def test_an_official_broker_registers_at_our_name_server_with_its_certificate(
    encrypted: Broker, make_broker: MakeBroker, made: Certificates, tls: Tls, tmp_path: Path
) -> None:
    """The broker needs a server certificate as well; without TLS it stays unknown."""
    path, server = tmp_path / "tls.properties", made.files()
    path.write_text(
        properties(made, tls)
        + f"tls.server.certPath={server.cert_path}\ntls.server.keyPath={server.key_path}\n"
    )
    name_server = encrypted.name_server
    plain = make_broker("official", tmp_path / "plain", name_server, brokerName="official-c")
    broker = make_broker("official", tmp_path / "shows", name_server, brokerName="official-b")
    assert isinstance(broker, OfficialBroker)
    broker.jvm_options += ("-Dtls.enable=true", f"-Dtls.config.file={path}")
    broker.asked_over = encrypted.asked_over
    plain.launch()
    try:
        with broker:
            wait_until(lambda: accepts(plain.address), "the plain one serves")
            for _ in range(2):
                assert not knows_broker(name_server.address, plain.address, tls=broker.asked_over)
                assert knows_broker(name_server.address, broker.address, tls=broker.asked_over)
    finally:
        plain.stop()


@pytest.mark.whole
def test_our_client_connects_with_tls_to_official_servers_in_test_mode(
    scratch: Path, make_name_server: MakeNameServer, make_broker: MakeBroker, tmp_path: Path
) -> None:
    believing = Tls(checks_server=False)
    name_server = make_name_server("official", tmp_path / "name-server")
    with name_server, make_broker("official", tmp_path / "broker", name_server):
        address = name_server.address
        with Admin(address, tls=believing) as admin:
            admin.create_topic(TOPIC, 2)
        with Producer("shop", address, tls=believing) as producer:
            bodies = {b"%d" % number * 30_000 for number in range(5)}
            for body in bodies:
                assert producer.send(Message(TOPIC, body)).status is SendStatus.OK
        found: set[bytes] = set()

        def has_all() -> bool:
            found.update(each.body for each in consumer.poll(1000))
            return found >= bodies

        first = ConsumeFrom.FIRST_OFFSET
        with PullConsumer("eaters", address, begin=first, tls=believing) as consumer:
            consumer.subscribe(TOPIC)
            wait_until(has_all, "all messages")
        assert address.startswith(HOST)
