"""More attempts on name servers: A35, A36; the first are in test_attempts_on_servers.py."""

from collections.abc import Iterator

import pytest

from actors.naming import registration_reader
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.namesrv import BrokerIdentityHeader, RegisterBrokerHeader
from tests.support.open_namesrv import OpenNamesrv, topics

AT = "10.0.0.1:10911"


@pytest.fixture
def namesrv() -> Iterator[OpenNamesrv]:
    made = OpenNamesrv()
    yield made
    assert made.system.stop(30)


def identity(name: str, address: str = AT, broker_id: int = 0) -> dict[str, str]:
    return BrokerIdentityHeader(name, address, "DefaultCluster", broker_id).encode()


@pytest.mark.parametrize("code", [Code.QUERY_DATA_VERSION, Code.UNREGISTER_BROKER])
@pytest.mark.parametrize("of_what", ["bodies", "fields", "requests"])
def test_a36_what_waits_behind_a_registration_is_counted_with_it(
    namesrv: OpenNamesrv, monkeypatch: pytest.MonkeyPatch, code: Code, of_what: str
) -> None:
    """Forty questions with 28 MiB each behind a few registrations were 1.2 GiB."""
    monkeypatch.setattr(registration_reader, "READING_BYTES_MAX", 1 << 20)
    many = topics(*(f"topic-{n:0200}" for n in range(1000)))
    header = RegisterBrokerHeader("b", AT, "DefaultCluster", AT, 0)
    body, fields = b"{}", identity("b")
    if of_what == "bodies":
        body = body.ljust(registration_reader.LARGE_BODY_BYTES)
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
        assert refused < 100, "nobody keeps what nobody reads"
    else:
        assert refused > (40 if of_what == "requests" else 250)
    codes.clear()
    send_all(4)
    assert codes == [0] * 5, "there is room again"


def test_a36_a_question_with_a_long_body_does_not_wait_at_all(namesrv: OpenNamesrv) -> None:
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
    assert answers == ["the body is no data version", None]
