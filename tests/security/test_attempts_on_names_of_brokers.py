"""More attempts on name servers: A35, A36; the first are in test_attempts_on_servers.py."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from structlog.testing import capture_logs

from actors.config import NamesrvConfig
from actors.engine.server_log import LINES_MAX
from actors.naming import namesrv as namesrv_actor
from actors.naming import registration_reader, table_limits
from actors.network import limits
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand, encode
from protocol.headers.namesrv import BrokerIdentityHeader, RegisterBrokerHeader
from tests.support.open_namesrv import OpenNamesrv, topics

AT = "10.0.0.1:10911"


@pytest.fixture
def namesrv() -> Iterator[OpenNamesrv]:
    made = OpenNamesrv(seed=15)  # how many wait depends on the order of the actors
    yield made
    assert made.system.stop(30)


def identity(name: str, address: str = AT, broker_id: int = 0) -> dict[str, str]:
    return BrokerIdentityHeader(name, address, "DefaultCluster", broker_id).encode()


@pytest.mark.parametrize("code", [Code.QUERY_DATA_VERSION, Code.UNREGISTER_BROKER])
@pytest.mark.parametrize("of_what", ["bodies", "fields", "requests"])
def test_a36_requests_waiting_behind_a_registration_are_counted_with_it(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch, code: Code, of_what: str
) -> None:
    """Forty questions with 28 MiB each behind a few registrations were 1.2 GiB."""
    monkeypatch.setattr(registration_reader, "READING_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(namesrv_actor, "VERSION_BYTES_MAX", 64 << 10)
    many = topics(*(f"topic-{n:0200}" for n in range(1000)))
    header = RegisterBrokerHeader("b", AT, "DefaultCluster", AT, 0)
    body, fields = b"{}", identity("b")
    if of_what == "bodies":
        body = body.ljust(64 << 10)
    elif of_what == "fields":
        fields["more"] = "x" * (64 << 10)
    codes: list[int] = []

    def send(code: Code, fields: dict[str, str], body: bytes) -> None:
        command = RemotingCommand(code, fields, body, version=407)
        namesrv.client().start(command, lambda answer: codes.append(answer.code))

    def send_all(questions: int) -> None:
        send(Code.REGISTER_BROKER, header.encode(), many)
        for _ in range(questions):
            send(code, fields, body)
        namesrv.system.drain()
        namesrv.system.advance(60_000)

    send_all(300)
    refused = codes.count(ResponseCode.SYSTEM_BUSY)
    assert codes.count(0) == 301 - refused
    if of_what == "bodies" and code == Code.UNREGISTER_BROKER:
        assert refused < 100, "bodies without a reader are not kept"
    else:
        assert refused > (40 if of_what == "requests" else 250)
    codes.clear()
    send_all(4)
    assert codes == [0] * 5, "there is room again"


def test_a36_a_query_with_a_long_body_is_refused_without_waiting(namesrv: OpenNamesrv) -> None:
    many = topics(*(f"topic-{n:0200}" for n in range(1000)))
    header = RegisterBrokerHeader("b", AT, "DefaultCluster", AT, 0)
    answers: list[str | None] = []
    body = bytes(registration_reader.LARGE_BODY_BYTES + 1)
    for code, fields, sent in (
        (Code.REGISTER_BROKER, header.encode(), many),
        (Code.QUERY_DATA_VERSION, identity("b"), body),
    ):
        command = RemotingCommand(code, fields, sent, version=407)
        namesrv.client().start(command, lambda answer: answers.append(answer.remark))
    namesrv.system.drain()
    namesrv.system.advance(60_000)
    assert answers == ["the body is not a data version", None]


def test_a36_names_of_an_unregistered_address_take_no_slots(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 of them stayed until a restart, and no broker could register any more."""
    monkeypatch.setattr(table_limits, "BROKERS_MAX", 60)
    for number in range(4):
        namesrv.peer = namesrv.client(f"198.51.100.{number}")
        at = f"10.0.0.1:{number + 1}"
        names = [f"n{number}-{each}" for each in range(20)]
        assert {namesrv.register(name, at).code for name in names} == {0}
        assert namesrv.ask(Code.UNREGISTER_BROKER, identity("another", at)).code == 0
    assert namesrv.brokers() == {} and namesrv.topics() == []
    assert namesrv.register("real", AT).code == 0


def test_unregistrations_of_unknown_brokers_are_not_logged(namesrv: OpenNamesrv) -> None:
    with capture_logs() as logs:
        for number in range(1000):
            fields = identity(f"invented-{number}", f"10.0.0.1:{number}")
            assert namesrv.ask(Code.UNREGISTER_BROKER, fields).code == 0
        assert logs == []
        namesrv.register("real", AT)
        namesrv.ask(Code.UNREGISTER_BROKER, identity("real"))
    assert [each["event"] for each in logs] == ["broker registered", "broker unregistered"]


def test_a36_a_broker_that_changes_clusters_leaves_nothing_behind(namesrv: OpenNamesrv) -> None:
    """Three thousand names of a thousand letters were all kept, and sent to every client."""
    for number in range(300):
        header = RegisterBrokerHeader("b", AT, f"{number}".ljust(1000, "c"), AT, 0)
        assert namesrv.ask(Code.REGISTER_BROKER, header.encode(), topics("T")).code == 0
    answer = namesrv.ask(Code.GET_BROKER_CLUSTER_INFO, {})
    assert len(answer.body or b"") < 5000


def test_a_name_servers_frame_limit_is_a_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Above 32 MiB they were more than one address may hold, whatever the setting."""
    assert NamesrvConfig().frame_bytes_max == 2 * limits.HALF_BYTES_OF_ADDRESS_MAX
    monkeypatch.setattr(limits, "HALF_BYTES_OF_ADDRESS_MAX", 64 << 10)
    header = RegisterBrokerHeader("b", AT, "DefaultCluster", AT, 0)
    body = topics(*(f"topic-{n:0200}" for n in range(1000)))
    frame = encode(RemotingCommand(Code.REGISTER_BROKER, header.encode(), body, version=407))
    made = OpenNamesrv(frame_bytes_max=len(frame))
    with made.socket() as one, made.socket() as other:
        one.send(frame[:-1])
        assert one.received() is None
        one.send(frame[-1:])
        assert b'"code":0' in (one.received() or b"")
        assert len(made.topics()) == 1000
        one.send(frame[:-10])
        other.send(frame[:100])
        assert one.received() == b"", "not two of them from one address"
        assert made.system.stop(30)


def test_a38_a_name_servers_connection_limit_is_a_setting() -> None:
    made = OpenNamesrv(connections_max=3, connections_of_address_max=2)
    hosts = ["198.51.100.1"] * 3 + ["198.51.100.2"] * 2 + ["127.0.0.1"] * 5
    with capture_logs() as logs, ExitStack() as opened:
        lines = [opened.enter_context(made.socket(host)) for host in hosts]
        found = [line.received() for line in lines]
        assert made.system.stop(30)
    assert found == [None, None, b"", None, b"", *[None] * 5]
    told = [each["event"] for each in logs if each["log_level"] == "warning"]
    settings = "maxConnectionsPerAddress", "maxConnections"
    assert told == [f"connection rejected: {setting} reached" for setting in settings]


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b" * 5000}, None),
        (Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b" * 5000}, None),
        (Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "t" * 5000}, None),
        (Code.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true"),
    ],
)
def test_a_flood_of_refused_administration_logs_few_lines(
    namesrv: OpenNamesrv, code: Code, fields: dict[str, str], body: bytes | None
) -> None:
    """Without access control any client may send some thousand a second."""
    with capture_logs() as logs:
        for _ in range(LINES_MAX + 50):
            assert namesrv.ask(code, fields, body).code == 0
        namesrv.system.advance(70_000)
    counts = Counter(each["event"] for each in logs)
    assert sorted(counts.values()) in ([1, LINES_MAX], [2, LINES_MAX]), counts
    assert sum(len(str(each)) for each in logs) < 1000 * LINES_MAX
