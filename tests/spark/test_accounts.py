"""Reads and writes of Spark at a broker with access control, without a JVM."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import dumps, loads
from typing import Any

import pytest

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.signature import Credentials, SecretKey, signed_values
from remoting.sync_connection import SyncConnection
from spark.leasing.broker_leases import BrokerLease
from spark.runner import command, environment
from spark.sink.options import parse_sink_options
from spark.sink.writer import TaskName, send_task
from spark.source import cluster as cluster_module
from spark.source.options import parse_options
from storage.errors import StoreError
from tests.spark.planned import rows_of
from tests.spark.sink.served import QUEUES, batches, tell_routes
from tests.support.sockets import HOST, serving_broker
from tests.troupemq.fake_server import FakeServer

ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: secret-admin, admin: true}
- {accessKey: spark-account, secretKey: secret-of-spark, monitor: true,
   topicPerms: [orders=PUB|SUB], groupPerms: [TOOLS_CONSUMER=SUB]}
- {accessKey: other-account, secretKey: secret-of-other, groupPerms: [TOOLS_CONSUMER=SUB]}
"""
SECRET = "secret-of-spark"
OWN = {"accessKey": "spark-account", "secretKey": SECRET}
OTHER = {"accessKey": "other-account", "secretKey": "secret-of-other"}
ROWS = [{"body": b"%d" % number, "tags": "a"} for number in range(8)]


@dataclass
class Guarded:
    """A broker with access control, and a name server that records the accounts of its callers."""

    name_server: str
    broker: str
    asked: list[RemotingCommand]

    def given(self, **options: str) -> dict[str, str]:
        return {"nameServer": self.name_server, "topic": "orders", **options}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_servers(tmp_path_factory.mktemp("guarded")) as made:
        yield made


@contextmanager
def guarded_servers(root: Path) -> Iterator[Guarded]:
    """Run both servers, with eight messages of the account in the topic."""
    file = root / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    with (
        serving_broker(root / "store", acl_enable=True, acl_file=str(file)) as running,
        FakeServer() as name_server,
    ):
        address = f"{HOST}:{running.ports.main}"
        administrator = Credentials("administrator", "secret-admin")
        with SyncConnection(address, credentials=administrator) as line:
            header = CreateTopicHeader("orders", "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG")
            line.ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode()))
        tell_routes(name_server, {"broker-a": address}, ("orders", "denied"))
        made = Guarded(name_server.address, address, [])
        answer = name_server.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC]

        def noted(command: RemotingCommand) -> RemotingCommand | bytes | None:
            made.asked.append(command)
            return answer(command)

        name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, noted)
        write(made, **OWN)
        yield made


def write(guarded: Guarded, **options: str) -> int:
    """Send rows as one task does."""
    told = parse_sink_options(guarded.given(sendTimeoutMs="0", **options))
    return send_task(TaskName("query", 0, 0), batches(ROWS), told).sent


def bodies(guarded: Guarded, **options: str) -> list[bytes]:
    return sorted(row["body"] for row in rows_of(guarded.given(**options)))


def test_rows_are_written_and_read_by_an_account(guarded: Guarded) -> None:
    assert bodies(guarded, **OWN) == [row["body"] for row in ROWS]
    for request in guarded.asked:
        fields = request.fields or {}
        signature = fields["Signature"].encode()
        assert fields["AccessKey"] == "spark-account"
        assert SecretKey(SECRET).has_signed(signature, signed_values(fields), request.body)


def test_an_account_reads_by_pulls(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cluster_module._REFUSED_UNTIL_S, guarded.broker, float("inf"))
    assert bodies(guarded, **OWN) == [row["body"] for row in ROWS]


def test_an_account_can_come_from_a_file_or_the_environment(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in OWN.items()))
    assert bodies(guarded, aclFile=str(file))
    monkeypatch.setenv("TROUPEMQ_ACL_FILE", str(file))
    assert bodies(guarded)


def test_other_accounts_are_refused_with_the_brokers_text_and_no_secret(guarded: Guarded) -> None:
    denied = "No default permission for topic:orders"
    cases = [
        ({}, "No accessKey is configured"),
        (OTHER, denied),
        ({**OWN, "secretKey": "not-" + SECRET}, "Check signature failed"),
    ]
    for options, text in cases:
        for what in (bodies, write):
            with pytest.raises(StoreError, match=text) as refused:
                what(guarded, **options)
            assert "secret" not in str(refused.value)


@pytest.mark.parametrize("parse", [parse_options, parse_sink_options])
def test_the_secret_is_sent_with_a_task_and_appears_in_no_output(parse: Any) -> None:
    told = parse({"nameServer": "h:1", "topic": "orders", **OWN, "securityToken": "lent-token"})
    arrived = loads(dumps(told))
    assert arrived.credentials == Credentials("spark-account", SECRET, "lent-token")
    assert SECRET not in repr(told) and "lent-token" not in repr(told)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"accessKey": "spark-account"}, "accessKey and secretKey must be given together"),
        ({"secretKey": SECRET}, "accessKey and secretKey must be given together"),
        ({**OWN, "aclFile": "/tools.yml"}, "aclFile and accessKey contradict each other"),
        ({"aclFile": "/nowhere/tools.yml"}, "/nowhere/tools.yml cannot be read"),
    ],
)
@pytest.mark.parametrize("parse", [parse_options, parse_sink_options])
def test_a_partial_or_double_account_is_refused(
    parse: Any, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(StoreError, match=sentence) as refused:
        parse({"nameServer": "h:1", "topic": "orders", **options})
    assert SECRET not in str(refused.value)


def test_a_store_needs_no_account(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="accessKey is for servers"):
        parse_options({"store": str(tmp_path), **OWN})


def test_an_account_acquires_and_renews_a_lease(guarded: Guarded) -> None:
    own, queues = Credentials(**_arguments(OWN)), {("orders", 0): 0}
    lease = BrokerLease(guarded.broker, "a read", queues, credentials=own)
    assert lease.acquire()
    again = BrokerLease.from_json(lease.as_json())
    assert again.renew()
    again.release()
    other = BrokerLease(
        guarded.broker, "a read", queues, credentials=Credentials(**_arguments(OTHER))
    )
    assert not other.acquire()
    for each in (lease, other):
        each.close()


def _arguments(options: dict[str, str]) -> dict[str, str]:
    return {"access_key": options["accessKey"], "secret_key": options["secretKey"]}


def test_a_brokers_job_uses_the_operators_account() -> None:
    given = environment(
        {
            "TROUPEMQ_ACCESS_KEY": "spark-account",
            "TROUPEMQ_SECRET_KEY": SECRET,
            "TROUPEMQ_BROKER_ACCESS_KEY": "brokers-account",
            "TROUPEMQ_BROKER_SECRET_KEY": "secret-of-brokers",
        }
    )
    assert given["TROUPEMQ_SECRET_KEY"] == SECRET
    assert not any("BROKER" in name for name in given)
    assert SECRET not in " ".join(command("archive", {}, work_directory="/w"))
