"""Official clients and tools with TLS at our servers, and ours at official ones.

Ours want TLS and a certificate of everybody, the official ones are as they come: in test mode.
The Go client knows no TLS.
"""

from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess, run
from sys import executable

import pytest

from tests.compat.agent import Agent, closing, java_agent
from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.corpus import Outgoing
from tests.compat.groups import receive
from tests.compat.mqadmin import MAIN_CLASS, TIMEOUT_S, java_command
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route
from tests.compat.servers import CLUSTER, HOST, Broker, OurNameServer
from tests.compat.toolchain import Java
from tests.support.certificates import Certificates
from troupemq import Admin, ConsumeFrom, Message, Producer, PullConsumer, SendStatus, Tls

TOPIC = "Encrypted"
CASES = ["java", pytest.param("java-5", marks=pytest.mark.whole)]


@pytest.fixture(scope="module")
def made(scratch: Path) -> Certificates:
    return Certificates(scratch / "tls")


@pytest.fixture(scope="module")
def tls(made: Certificates) -> Tls:
    """How ours calls ours."""
    files = made.files("client", "client-1")
    return Tls(files.trust_path, files.cert_path, files.key_path)


@pytest.fixture(scope="module")
def encrypted(
    scratch: Path, make_broker: MakeBroker, made: Certificates, tls: Tls
) -> Iterator[Broker]:
    """Our broker and our name server."""
    name_server = OurNameServer(scratch / "encrypted" / "name-server")
    settings = dict(
        made.settings(
            **{
                "tls.server.mode": "enforcing",
                "tls.server.need.client.auth": "require",
                "tls.server.trustCertPath": made.trust,
            }
        )
    )
    name_server.settings |= settings
    settings |= {
        "tls.client.trustCertPath": made.trust,
        "tls.client.certPath": tls.certificate,
        "tls.client.keyPath": tls.key,
    }
    broker = make_broker("ours", scratch / "encrypted" / "broker", name_server, **settings)
    broker.asked_over = made.calls(shows=made.files("client", "client-1"))
    with name_server, broker:
        address = name_server.address
        with Admin(address, tls=tls) as admin:
            admin.create_topic(TOPIC, 2)
        wait_until(lambda: has_route(address, TOPIC, tls=broker.asked_over), "a route")
        yield broker


@pytest.fixture(scope="module")
def shows(made: Certificates, tls: Tls) -> tuple[str, ...]:
    """The options of a Java that shows a certificate and wants one."""
    path = made.folder / "tls.properties"
    path.write_text(
        "tls.test.mode.enable=false\ntls.client.authServer=true\n"
        f"tls.client.trustCertPath={made.trust}\n"
        f"tls.client.certPath={tls.certificate}\ntls.client.keyPath={tls.key}\n"
    )
    return ("-Dtls.enable=true", f"-Dtls.config.file={path}")


def numbered(count: int) -> list[Outgoing]:
    return [Outgoing(f"message-{number}", b"body %d" % number * 5000) for number in range(count)]


@pytest.fixture
def java_of(
    request: pytest.FixtureRequest, scratch: Path, encrypted: Broker, java_tools: Java
) -> Java:
    """That of a case."""
    if request.param == "java":
        return java_tools
    java_5: Java = request.getfixturevalue("java_5_tools")
    return java_5


@pytest.mark.parametrize("java_of", CASES, indirect=True)
def test_a_client_with_a_certificate_sends_and_consumes(
    java_of: Java,
    encrypted: Broker,
    shows: tuple[str, ...],
    tmp_path: Path,
) -> None:
    group = f"of-{tmp_path.name}"
    with closing(java_agent("encrypted", java_of, tmp_path, encrypted, *shows)) as client:
        client.join("eater", group, TOPIC)
        expected = 0
        for way in ("sync", "async", "oneway", "batch"):
            sent = client.send(way, TOPIC, numbered(3), group="senders")
            assert {each["status"] for each in sent.results} <= {"SEND_OK"}, sent.results
            expected += 3
        receive(client, "eater", expected)
        client.leave("eater")


def said_to(client: Agent) -> str:
    with pytest.raises(AssertionError) as failed:
        client.send("sync", TOPIC, numbered(1), group="strangers")
    return str(failed.value)


def test_a_client_without_tls_or_without_a_certificate_is_turned_away(
    java_tools: Java, encrypted: Broker, tmp_path: Path
) -> None:
    for number, options in enumerate(((), ("-Dtls.enable=true",))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with closing(java_agent("turned-away", java_tools, folder, encrypted, *options)) as client:
            said = said_to(client)
            words = ("RemotingSendRequestException", "RemotingConnectException", "No route info")
            assert any(each in said for each in words), said


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


def test_mqadmin_and_our_commands_with_tls(
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
def test_our_client_with_tls_at_official_servers_in_test_mode(
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
