"""TLS of brokers and name servers that really listen: who gets in, what is refused, and what is
stored of it. A5, A6 and A8 of docs/security.md."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import copyfile, which
from socket import create_connection, socket
from ssl import OP_NO_RENEGOTIATION, SSLError, TLSVersion
from threading import Event
from time import monotonic
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.config import BrokerConfig, NamesrvConfig
from actors.network.tls_negotiator import TIME_MS
from protocol.ha import TRANSFER_HEAD_BYTES, encode_report
from remoting.tls import TlsFiles, server_context
from storage.config import StoreConfig
from tests.support.brokers import send_command
from tests.support.certificates import Certificates
from tests.support.sockets import HOST, WAIT_S, Line, frames_of, serving_broker
from tests.support.tls_records import Records, shaken_old, writes_keys
from troupemq import (
    Admin,
    ConnectionFailed,
    Credentials,
    Message,
    Producer,
    PushConsumer,
    Tls,
)
from troupemq.servers import Servers

ROOT = Path(__file__).resolve().parents[2]
ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: secret-admin, admin: true}
- {accessKey: careful-account, secretKey: secret-careful, topicPerms: [Orders=PUB|SUB],
   requireTls: true}
"""


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "tls")


def tls_settings(files: TlsFiles, mode: str = "enforcing") -> dict[str, Any]:
    """Return the settings of a server with this certificate."""
    return {
        "tls_mode": mode,
        "tls_server_certificate": files.cert_path,
        "tls_server_key": files.key_path,
    }


def calls_with(files: TlsFiles, *, shows: bool = False) -> dict[str, Any]:
    """Return the settings of a broker for its outbound connections."""
    return {
        "tls_client_trust": files.trust_path,
        "tls_client_certificate": files.cert_path if shows else "",
        "tls_client_key": files.key_path if shows else "",
    }


@contextmanager
def cluster(
    tmp_path: Path, settings: dict[str, Any], **of_broker: Any
) -> Iterator[tuple[Servers, str, BrokerConfig]]:
    """A name server and a broker with the same settings; the name server's address."""
    servers = Servers(pytest.fail)
    common = {"listen_port": 0, "bind_address": HOST, **settings}
    servers.start_namesrv(NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"), **common))
    namesrv = f"{HOST}:{servers.ports['namesrv']}"
    config = BrokerConfig(
        broker_name="broker-a",
        broker_ip1=HOST,
        broker_ip2=HOST,
        namesrv_address=namesrv,
        **common,
        **of_broker,
    )
    servers.start_broker(config, store(tmp_path / "store"))
    try:
        broker = servers.broker
        assert broker is not None
        comes_true(lambda: broker.broker.attachment.registered.value > 0)
        yield servers, namesrv, config
    finally:
        assert servers.stop(WAIT_S)


def store(root: Path) -> StoreConfig:
    return StoreConfig(
        root=str(root), commit_log_file_bytes=16 << 20, max_hash_slots=100, max_index_entries=400
    )


def comes_true(condition: Callable[[], bool]) -> None:
    end_s = monotonic() + WAIT_S
    pause = Event()
    while not condition():
        assert monotonic() < end_s, "never came"
        pause.wait(0.02)


def test_a6_nothing_of_a_plain_connection_is_stored_where_tls_is_enforced(
    made: Certificates, tmp_path: Path
) -> None:
    """4.9.7 stores what comes with the first read."""
    with serving_broker(tmp_path / "store", **tls_settings(made.files())) as running:
        log = running.broker.store.commit_log
        before = log.end_offset
        with Line.to(running.ports.main) as plain:
            plain.send_bytes(frames_of([send_command(oneway=True) for _ in range(10)]))
            assert plain.rest() == [], "closed without a word"
        with Line.to(running.ports.fast) as plain:
            plain.send_bytes(frames_of([send_command()]))
            assert plain.rest() == []
        with Line(made_tls_socket(made, running.ports.main)) as encrypted:
            assert encrypted.ask(send_command()).code == 0
        assert log.end_offset > before, "of the one that came with TLS"
        assert log.end_offset - before < 400, "and of no other"


def made_tls_socket(made: Certificates, port: int) -> Any:
    sock = create_connection((HOST, port), WAIT_S)
    return made.calls().wrap_socket(sock, server_hostname=HOST)


def test_a_permissive_port_serves_plain_and_tls_clients(made: Certificates, tmp_path: Path) -> None:
    settings = tls_settings(made.files(), "permissive")
    with serving_broker(tmp_path / "store", **settings) as running:
        with Line.to(running.ports.main) as plain:
            assert plain.ask(send_command()).code == 0
        with Line(made_tls_socket(made, running.ports.main)) as encrypted:
            assert encrypted.ask(send_command(b"x" * 3_000_000)).code == 0


def test_a_tls_client_at_a_plain_server_is_logged(made: Certificates, tmp_path: Path) -> None:
    with serving_broker(tmp_path / "store") as running, capture_logs() as logs:
        with pytest.raises(OSError):
            made_tls_socket(made, running.ports.main)
        comes_true(lambda: "no certificate" in str(logs))


def test_a5_tls_at_a_port_where_it_is_disabled_is_closed_at_once(
    made: Certificates, tmp_path: Path
) -> None:
    settings = tls_settings(made.files(), "disabled")
    with serving_broker(tmp_path / "store", **settings) as running, capture_logs() as logs:
        for says in (
            b"\x16" + bytes(7),
            b"\x16\x03\x01\x02\x00\x01\x00\x01",
            b"\x16" + b"\xff" * 50,
        ):
            with create_connection((HOST, running.ports.main), WAIT_S) as sock:
                sock.sendall(says)
                with suppress(ConnectionResetError):
                    assert sock.recv(100) == b""
        with pytest.raises(OSError):
            made_tls_socket(made, running.ports.main)
        with Line.to(running.ports.main) as plain:
            assert plain.ask(send_command()).code == 0
        comes_true(lambda: "connection closed" in str(logs))
    assert not [each for each in logs if each["log_level"] == "error"]


@pytest.mark.filterwarnings("ignore:.*TLSv1:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*TLSv1_1:DeprecationWarning")
@pytest.mark.parametrize("version", [TLSVersion.TLSv1, TLSVersion.TLSv1_1])
def test_a8_old_versions_and_renegotiation_are_refused(
    made: Certificates, tmp_path: Path, version: TLSVersion
) -> None:
    assert server_context(made.files()).options & OP_NO_RENEGOTIATION
    with serving_broker(tmp_path / "store", **tls_settings(made.files())) as running:
        calls = made.calls()
        calls.set_ciphers("ALL:@SECLEVEL=0")
        calls.minimum_version = TLSVersion.MINIMUM_SUPPORTED
        calls.maximum_version = version
        sock = create_connection((HOST, running.ports.main), WAIT_S)
        with sock, pytest.raises((SSLError, ConnectionError)):
            calls.wrap_socket(sock, server_hostname=HOST)


def test_a_flood_of_key_updates_ends_only_its_connection(
    made: Certificates, tmp_path: Path
) -> None:
    """Each has 27 bytes and takes 14 µs: 256 KiB of them blocked the loop for 91 to 182 ms."""
    settings = tls_settings(made.files()) | {"tls_ha_mode": "enforcing"}
    with serving_broker(tmp_path / "store", **settings) as running, capture_logs() as logs:
        with Line(made_tls_socket(made, running.ports.main)) as neighbour:
            for number, port in enumerate((running.ports.main, running.ports.ha)):
                context = writes_keys(made.calls(), keys := tmp_path / f"keys-{number}")
                shaken = context.wrap_socket(create_connection((HOST, port)), server_hostname=HOST)
                with socket(fileno=shaken.detach()) as flood:
                    flood.settimeout(WAIT_S)
                    records = Records(keys)
                    with suppress(ConnectionError):
                        flood.sendall(b"".join(records.new_keys() for _ in range(2000)))
                        assert flood.recv(1) == b""
            assert neighbour.ask(send_command()).code == 0
        comes_true(lambda: str(logs).count("read failed: it sends records without data") == 2)


@pytest.mark.parametrize(
    "ciphers", ["kRSA", "DHE-RSA-AES128-SHA", "ECDHE-ECDSA-AES128-SHA", "aNULL"]
)
def test_a8_ciphers_without_forward_secrecy_or_authentication_are_refused(
    made: Certificates, tmp_path: Path, ciphers: str
) -> None:
    files = made.files(is_rsa="RSA" in ciphers)  # else there is nothing to refuse
    with serving_broker(tmp_path / "store", **tls_settings(files)) as running:
        calls = made.calls()
        calls.maximum_version = TLSVersion.TLSv1_2
        calls.set_ciphers(f"{ciphers}:@SECLEVEL=0")
        sock = create_connection((HOST, running.ports.main), WAIT_S)
        with sock, pytest.raises((SSLError, ConnectionError)):
            calls.wrap_socket(sock, server_hostname=HOST)
        with Line(made_tls_socket(made, running.ports.main)) as other:
            assert other.ask(send_command()).code == 0


@pytest.mark.skipif(which("openssl") is None, reason="no openssl here")
@pytest.mark.slow(seconds=2)
def test_a8_a_renegotiation_request_gets_no_answer(made: Certificates, tmp_path: Path) -> None:
    with serving_broker(tmp_path / "store", **tls_settings(made.files())) as running:
        target = f"{HOST}:{running.ports.main}"
        done = subprocess.run(
            ["openssl", "s_client", "-tls1_2", "-msg", "-connect", target],
            input=b"R\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=WAIT_S,
        )
        said = done.stdout.partition(b"RENEGOTIATING")[2]
        assert said and b"ServerHello" not in said, done.stdout[-2000:]


@pytest.mark.parametrize("before", [0, 1, 20])
def test_a8_thousands_of_handshakes_end_only_their_connection(
    made: Certificates, tmp_path: Path, before: int
) -> None:
    """A record holds 4,096 beginnings of one; each was answered, 20 ms a record."""
    settings = tls_settings(made.files()) | {"tls_ha_mode": "enforcing"}
    with serving_broker(tmp_path / "store", **settings) as running, capture_logs() as logs:
        with Line(made_tls_socket(made, running.ports.main)) as neighbour:
            asked = {running.ports.main: frames_of([send_command()]), running.ports.ha: bytes(8)}
            for port, data in asked.items():
                context = writes_keys(made.calls(), keys := tmp_path / f"keys-{port}")
                with create_connection((HOST, port), WAIT_S) as flood:
                    records = shaken_old(context, flood, keys)
                    stream = b"".join(records.data(data) for _ in range(before))
                    for _ in range(32):
                        stream += records.of_handshake(b"\x01\0\0\0" * 4096)
                    came = 0
                    with suppress(ConnectionError):
                        flood.sendall(stream)
                        while data := flood.recv(1 << 16):
                            came += len(data)
                    assert came < 20_000, "to what was asked, and to no more"
            assert neighbour.ask(send_command()).code == 0
        comes_true(lambda: str(logs).count("begins a handshake in TLS") == 2)


def test_our_client_sends_and_consumes_with_a_certificate_of_its_own(
    made: Certificates, tmp_path: Path
) -> None:
    server, client = made.files(), made.files("client", "client-1")
    settings = tls_settings(server) | {
        "tls_client_auth": "require",
        "tls_server_trust": server.trust_path,
    }
    with cluster(tmp_path, settings, **calls_with(server, shows=True)) as (_, namesrv, _):
        tls = Tls(client.trust_path, client.cert_path, client.key_path)
        bodies = [b"a" * size for size in (1, 20_000, 1_000_000)]
        with Producer("shop", namesrv, tls=tls) as producer:
            for body in bodies:
                assert producer.send(Message("Orders", body)).queue.topic == "Orders"
        found: list[bytes] = []
        all_there = Event()

        def take(messages: Any) -> None:
            found.extend(message.body for message in messages)
            if len(found) >= len(bodies):
                all_there.set()

        with PushConsumer("billing", take, namesrv, tls=tls) as consumer:
            consumer.subscribe("Orders")
            assert all_there.wait(WAIT_S)
        assert sorted(found) == sorted(bodies)
        for wrong in (Tls(client.trust_path), None, Tls()):
            with pytest.raises(ConnectionFailed), Admin(namesrv, tls=wrong) as admin:
                admin.queues("Orders")


def test_an_account_that_requires_tls_is_refused_without_it(
    made: Certificates, tmp_path: Path
) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    settings = tls_settings(made.files(), "permissive") | {
        "acl_enable": True,
        "acl_file": str(accounts),
    }
    careful = Credentials("careful-account", "secret-careful")
    with serving_broker(tmp_path / "store", **settings) as running:
        with Line.to(running.ports.main) as plain:
            request = send_command(topic="Orders")
            careful.sign(request, 0)
            refused = plain.ask(request)
            assert "accessKey=careful-account is only allowed over TLS" in str(refused.remark)
        with Line(made_tls_socket(made, running.ports.main)) as encrypted:
            request = send_command(topic="Orders")
            careful.sign(request, 0)
            assert encrypted.ask(request).code == 0


def test_a_new_certificate_is_used_without_a_restart_or_disconnects(
    made: Certificates, tmp_path: Path
) -> None:
    with (
        serving_broker(tmp_path / "store", **tls_settings(made.files())) as running,
        Line(made_tls_socket(made, running.ports.main)) as before,
    ):
        assert before.ask(send_command()).code == 0
        other = made.files("other", "localhost")
        copyfile(other.key_path, made.folder / "server.key")
        copyfile(other.cert_path, made.folder / "server.pem")

        def shows_the_new_one() -> bool:
            calls = made.calls()
            with create_connection((HOST, running.ports.main), WAIT_S) as sock:
                try:
                    calls.wrap_socket(sock, server_hostname="localhost").close()
                except SSLError:
                    return False
            return True

        comes_true(shows_the_new_one)
        assert before.ask(send_command()).code == 0


@pytest.mark.parametrize("mode", ["disabled", "permissive", "enforcing"])
def test_the_replication_port_follows_its_own_tls_mode(
    mode: str, made: Certificates, tmp_path: Path
) -> None:
    """Whatever that of the port for clients is."""
    settings = tls_settings(made.files(), "permissive") | {"tls_ha_mode": mode}
    with serving_broker(tmp_path / "store", **settings) as running:
        with Line.to(running.ports.main) as client:
            assert client.ask(send_command()).code == 0
        with create_connection((HOST, running.ports.ha), WAIT_S) as plain:
            assert gets_the_log(plain) is (mode != "enforcing")
        try:
            with made_tls_socket(made, running.ports.ha) as encrypted:
                assert gets_the_log(encrypted) is (mode != "disabled")
        except (SSLError, ConnectionError):
            assert mode == "disabled"


def gets_the_log(slave: socket) -> bool:
    """Whether a slave that has nothing is sent the one message that there is."""
    slave.sendall(encode_report(0))
    try:
        return len(slave.recv(TRANSFER_HEAD_BYTES)) == TRANSFER_HEAD_BYTES
    except ConnectionResetError:
        return False


def is_closed(stranger: socket) -> bool:
    """Whether the other side closes it without a word."""
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_forbidden_address_at_the_replication_port_is_refused_before_tls(
    made: Certificates, tmp_path: Path
) -> None:
    settings = tls_settings(made.files()) | {"tls_ha_mode": "enforcing"}
    settings["ha_allowed_addresses"] = "192.0.2.7"
    with (
        serving_broker(tmp_path / "store", **settings) as running,
        create_connection((HOST, running.ports.ha), TIME_MS / 2000) as stranger,
    ):
        assert is_closed(stranger), "at once, though it has said nothing"


@pytest.mark.slow(seconds=8)
def test_a_slave_replicates_with_tls_and_is_refused_without(
    made: Certificates, tmp_path: Path
) -> None:
    server = made.files()
    settings = tls_settings(server) | {
        "tls_client_auth": "require",
        "tls_server_trust": server.trust_path,
    }
    calls = calls_with(server, shows=True) | {"tls_ha_mode": "enforcing"}
    with cluster(tmp_path, settings, **calls) as (servers, namesrv, config):
        with create_connection((HOST, servers.ports["ha"]), WAIT_S) as stranger:
            stranger.sendall(encode_report(0))
            assert is_closed(stranger)
        tls = Tls(server.trust_path, server.cert_path, server.key_path)
        with Producer("shop", namesrv, tls=tls) as producer:
            for number in range(20):
                producer.send(Message("Orders", Random(number).randbytes(100_000)))
        slave = Servers(pytest.fail)
        master = f"{HOST}:{servers.ports['ha']}"
        role = replace(config, broker_role="SLAVE", broker_id=1, ha_master_address=master)
        slave.start_broker(role, store(tmp_path / "slave"))
        try:
            assert servers.broker is not None and slave.broker is not None
            log = servers.broker.broker.store.commit_log
            copied = slave.broker.broker.store.commit_log
            comes_true(lambda: copied.end_offset >= log.end_offset)
            assert copied.view(0, 2_000_000) == log.view(0, 2_000_000)
        finally:
            assert slave.stop(WAIT_S)
