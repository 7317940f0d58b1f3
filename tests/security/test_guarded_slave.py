"""A master with access control and our slave: strangers get no log, the slave does."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from socket import create_connection, socket
from time import monotonic

import pytest

from actors.config import BrokerConfig, NamesrvConfig
from protocol.ha import encode_report
from storage.config import StoreConfig
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route
from troupemq import Admin, Credentials, Message, Producer
from troupemq.servers import Servers

ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: secret-admin, admin: true}
- {accessKey: brokers-account, secretKey: secret-brokers, broker: true}
"""
ADMINISTRATOR = Credentials("administrator", "secret-admin")
DEADLINE_S = 30


@pytest.fixture
def config(tmp_path: Path) -> Iterator[BrokerConfig]:
    """That of a master, for whom a name server runs."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    made = Servers(pytest.fail)
    made.start_namesrv(
        NamesrvConfig(
            listen_port=0,
            kv_config_path=str(tmp_path / "kv.json"),
            acl_enable=True,
            acl_file=str(path),
        )
    )
    yield BrokerConfig(
        broker_name="guarded",
        listen_port=0,
        broker_ip1="127.0.0.1",
        broker_ip2="127.0.0.1",
        namesrv_address=f"127.0.0.1:{made.ports['namesrv']}",
        acl_enable=True,
        acl_file=str(path),
        broker_access_key="brokers-account",
        broker_secret_key="secret-brokers",
    )
    assert made.stop(20)


@pytest.fixture
def servers(config: BrokerConfig) -> Iterator[tuple[Servers, Servers]]:
    """For a master and a slave; they end before the name server, whatever became of the test."""
    made = Servers(pytest.fail), Servers(pytest.fail)
    yield made
    assert [each.stop(20) for each in reversed(made)] == [True, True]


def store(root: Path) -> StoreConfig:
    return StoreConfig(
        root=str(root), commit_log_file_bytes=1 << 20, max_hash_slots=100, max_index_entries=400
    )


def gets_nothing(line: socket) -> bool:
    """Whether the other side closes it without a word."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.slow(seconds=12)
def test_h16_an_authenticated_slave_replicates_and_another_does_not(
    config: BrokerConfig, servers: tuple[Servers, Servers], tmp_path: Path
) -> None:
    master, slave = servers
    master.start_broker(config, store(tmp_path / "master"))
    with create_connection(("127.0.0.1", master.ports["ha"]), DEADLINE_S) as stranger:
        stranger.sendall(encode_report(0))
        assert gets_nothing(stranger), "no account was verified from this address"
    account = ADMINISTRATOR.access_key, ADMINISTRATOR.secret_key
    wait_until(lambda: has_route(config.namesrv_address, "TBW102", account), "it is registered")
    with Producer("shop", config.namesrv_address, credentials=ADMINISTRATOR) as producer:
        sent = producer.send(Message("Orders", b"one book"))
    role = replace(config, broker_role="SLAVE", broker_id=1)
    slave.start_broker(role, store(tmp_path / "slave"))
    log = tmp_path / "slave" / "commitlog" / f"{0:020}"
    end_s = monotonic() + DEADLINE_S
    while not log.exists() or b"one book" not in log.read_bytes():
        assert monotonic() < end_s
        with Admin(config.namesrv_address, credentials=ADMINISTRATOR) as admin:
            admin.offsets(sent.queue)  # something to do meanwhile
