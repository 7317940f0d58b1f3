"""Accounts of our clients: what is signed, and the way through servers with access control."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from click.testing import CliRunner

from actors.config import BrokerConfig, NamesrvConfig
from protocol.bodies import BrokerData, ClusterInfo
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.signature import SecretKey, signed_values
from storage.config import StoreConfig
from tests.support.sockets import Line
from tests.troupemq.client.cluster import SEND, Cluster, stored
from troupemq import (
    Admin,
    ArgumentIllegal,
    ClientError,
    ConsumeFrom,
    Credentials,
    Message,
    Producer,
    PullConsumer,
    RouteNotFound,
    TransactionProducer,
    TransactionState,
)
from troupemq.cli.admin import admin
from troupemq.servers import Servers

ACCOUNTS = """
accounts:
- {accessKey: administrator, secretKey: secret-admin, admin: true}
- {accessKey: brokers-account, secretKey: secret-brokers, broker: true}
- {accessKey: shop-account, secretKey: secret-shop, topicPerms: [Orders=PUB|SUB],
   groupPerms: [billing=SUB], aclMaxAgeSeconds: 60}
- {accessKey: reader-account, secretKey: secret-reader, topicPerms: [Orders=SUB]}
"""
ADMINISTRATOR = Credentials("administrator", "secret-admin")
SHOP = Credentials("shop-account", "secret-shop")
READER = Credentials("reader-account", "secret-reader")


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    """The address of a name server with access control; so has the broker beside it."""
    acl = tmp_path / "plain_acl.yml"
    acl.write_text(ACCOUNTS)
    made = Servers(pytest.fail)
    made.start_namesrv(
        NamesrvConfig(
            listen_port=0,
            kv_config_path=str(tmp_path / "kv.json"),
            acl_enable=True,
            acl_file=str(acl),
        )
    )
    address = f"127.0.0.1:{made.ports['namesrv']}"
    made.start_broker(
        BrokerConfig(
            listen_port=0,
            broker_ip1="127.0.0.1",
            namesrv_address=address,
            acl_enable=True,
            acl_file=str(acl),
            broker_access_key="brokers-account",
            broker_secret_key="secret-brokers",
        ),
        StoreConfig(
            root=str(tmp_path / "store"),
            commit_log_file_bytes=1 << 20,
            max_hash_slots=100,
            max_index_entries=400,
        ),
    )
    with Admin(address, credentials=ADMINISTRATOR) as administrator:
        create_topic(administrator, monotonic() + 20)
    yield address
    assert made.stop(20)


def create_topic(administrator: Admin, deadline_s: float) -> None:
    """Create the topic as soon as the broker is registered."""
    while True:
        try:
            return administrator.create_topic("Orders", 2)
        except RouteNotFound:
            assert monotonic() < deadline_s


def test_permitted_accounts_send_and_consume_and_others_get_the_reason(namesrv: str) -> None:
    with Producer("shop", namesrv, credentials=SHOP) as producer:
        producer.send(Message("Orders", b"one book"))
        producer.send_batch([Message("Orders", b"two"), Message("Orders", b"three")])
    with PullConsumer("billing", namesrv, begin=ConsumeFrom.FIRST_OFFSET, credentials=SHOP) as ours:
        ours.subscribe("Orders")
        found: list[bytes] = []
        while len(found) < 3:
            found += [each.body for each in ours.poll(1000)]
    assert sorted(found) == [b"one book", b"three", b"two"]
    denied = pytest.raises(ClientError, match="No default permission for topic:Orders")
    with Producer("shop", namesrv, credentials=READER) as producer, denied:
        producer.send(Message("Orders", b"another book"))
    wrong = Credentials("shop-account", "another-secret")
    failed = pytest.raises(ClientError, match="Check signature failed for accessKey=shop-account")
    with Admin(namesrv, credentials=wrong) as stranger, failed:
        stranger.queues("Orders")
    with Admin(namesrv) as nobody, pytest.raises(ClientError, match="No accessKey is configured"):
        nobody.queues("Orders")


def test_transactions_are_signed(namesrv: str) -> None:
    def executes(message: object, argument: object) -> TransactionState:
        return TransactionState.COMMIT

    with TransactionProducer(
        "shop", lambda message: TransactionState.COMMIT, namesrv, credentials=SHOP
    ) as producer:
        producer.send_in_transaction(Message("Orders", b"paid"), executes)
    with Admin(namesrv, credentials=SHOP) as ours:
        assert ours.message_count("Orders") >= 0


def test_commands_use_an_administrators_account(
    namesrv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN"):
        monkeypatch.setenv(f"TROUPEMQ_{name}", "")
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: administrator\nsecretKey: secret-admin\n")

    def run(*words: str) -> str:
        done = CliRunner().invoke(admin, [*words, "-n", namesrv, "--acl-file", str(keys)])
        assert done.exit_code == 0, done.output
        return done.output

    shown = run("getAclConfig", "-c", "DefaultCluster")
    assert "shop-account" in shown and "secret-" not in shown
    run("updateAclConfig", "-c", "DefaultCluster", "-a", "new-account", "-s", "secret-new")
    assert "new-account" in run("getAclConfig", "-c", "DefaultCluster")
    run("updateGlobalWhiteAddr", "-c", "DefaultCluster", "-g", "10.0.0.*")
    run("deleteAclConfig", "-c", "DefaultCluster", "-a", "new-account")
    assert "plain_acl.yml" in run("clusterAclConfigVersion", "-c", "DefaultCluster")
    run("compareAcl", "-c", "DefaultCluster")
    with Producer("shop", namesrv, credentials=READER) as producer, pytest.raises(ClientError):
        producer.send(Message("Orders", b"another book"))
    assert "reader-account" in run("aclRefusals", "-c", "DefaultCluster")
    assert "No request was refused." in run("aclRefusals", "-b", namesrv)
    monkeypatch.setenv("TROUPEMQ_ACCESS_KEY", "reader-account")
    monkeypatch.setenv("TROUPEMQ_SECRET_KEY", "secret-reader")
    done = CliRunner().invoke(admin, ["getAclConfig", "-c", "DefaultCluster", "-n", namesrv])
    assert done.exit_code == 1 and "Need admin permission" in done.output


@pytest.mark.parametrize(("of_b", "code"), [("1a2b", 0), ("9f9f", 1)])
def test_one_command_compares_the_accounts_of_all_brokers(
    of_b: str, code: int, cluster: Cluster
) -> None:
    """Also where mqadmin, which shows versions, sees no difference."""
    places = {"a": BrokerData("C", "a", {0: cluster.a.address})}
    places["b"] = BrokerData("C", "b", {0: cluster.b.address})
    body = ClusterInfo(places, {"C": ["a", "b"]}).encode()
    cluster.namesrv.on(
        RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.answer(body=body)
    )
    for name, server, found in (("a", cluster.a, "1a2b"), ("b", cluster.b, of_b)):
        fields = {
            "version": '{"counter":3,"timestamp":1}',
            "allAclFileVersion": '{"/plain_acl.yml":{"counter":3,"timestamp":1}}',
            "aclFingerprints": f'{{"/plain_acl.yml":"{found}"}}',
            "brokerName": name,
            "brokerAddr": server.address,
            "clusterName": "C",
        }
        server.succeed(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, **fields)
    words = ["compareAcl", "-c", "C", "-n", cluster.namesrv.address]
    done = CliRunner().invoke(admin, words)
    assert done.exit_code == code
    differ = f"The brokers have different accounts: {cluster.a.address}; {cluster.b.address}."
    assert (differ in done.stderr) is bool(code)
    assert cluster.a.address in done.stdout and cluster.b.address in done.stdout


def test_a_denied_consumers_status_shows_the_refusal(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PullConsumer("billing", namesrv, credentials=READER) as denied:
        denied.subscribe("Orders")
        assert not denied.poll(100)
        monkeypatch.setenv("TROUPEMQ_ACCESS_KEY", "administrator")
        monkeypatch.setenv("TROUPEMQ_SECRET_KEY", "secret-admin")
        with Admin(namesrv) as session:
            (place,) = session.topic_brokers("Orders")
        with Line.to(int(place.address.rpartition(":")[2])) as line:
            fields = {"topic": "Orders", "consumerGroup": "billing"}
            for account in (Credentials("shop-account", "its-old-secret"), None):
                pull = RemotingCommand(RequestCode.PULL_MESSAGE, dict(fields))
                if account is not None:
                    account.sign(pull, 1)
                assert line.ask(pull).code == 1
        done = CliRunner().invoke(admin, ["consumerStatus", "-g", "billing", "-n", namesrv])
    assert done.exit_code == 1
    assert "refused the account reader-account" in done.output
    assert "No default permission for group:billing" in done.output
    assert "refused the account shop-account" in done.output
    assert "Check signature failed for accessKey=shop-account" in done.output
    assert "refused a stranger from 127.0.0.1" in done.output


def test_a_consumer_without_a_route_shows_it_in_its_status(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the name server knows of a consumer that gets no route."""
    wrong = Credentials("shop-account", "its-old-secret")
    with PullConsumer("billing", namesrv, credentials=wrong) as denied:
        denied.subscribe("Orders")
        assert not denied.poll(100)
    monkeypatch.setenv("TROUPEMQ_ACCESS_KEY", "administrator")
    monkeypatch.setenv("TROUPEMQ_SECRET_KEY", "secret-admin")
    done = CliRunner().invoke(admin, ["consumerStatus", "-g", "billing", "-n", namesrv])
    assert done.exit_code == 1
    assert f"{namesrv} refused the account shop-account from 127.0.0.1" in done.output
    assert "with code 105 at 20" in done.output
    assert "Check signature failed for accessKey=shop-account" in done.output
    assert "consumer group billing not found" in done.output
    done = CliRunner().invoke(admin, ["aclRefusals", "-c", "DefaultCluster", "-n", namesrv])
    assert "For a name server, give its address with -b" in done.output


def test_every_request_is_signed_again_with_its_body(cluster: Cluster) -> None:
    asked: list[RemotingCommand] = []

    def record(command: RemotingCommand) -> RemotingCommand:
        asked.append(command)
        return stored(command)

    for server in (cluster.a, cluster.b):
        server.on(SEND, record)
    token = Credentials("account1", "secret12", "lent-token")
    with Producer("shop", cluster.namesrv.address, credentials=token) as producer:
        producer.send(Message("T", b"body"))
        producer.send(Message("T", b"body"))
    asked.append(cluster.namesrv.next(RequestCode.GET_ROUTEINFO_BY_TOPIC))
    signatures = set()
    for command in asked:
        fields = command.fields or {}
        assert (fields["AccessKey"], fields["SecurityToken"]) == ("account1", "lent-token")
        signature, values = fields["Signature"].encode(), signed_values(fields)
        assert SecretKey("secret12").has_signed(signature, values, command.body)
        signatures.add(signature)
    assert len(signatures) == len(asked) == 3


def test_half_an_account_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROUPEMQ_ACCESS_KEY", "account1")
    monkeypatch.delenv("TROUPEMQ_SECRET_KEY", raising=False)
    with pytest.raises(ArgumentIllegal, match="belong together"):
        Producer("shop")
