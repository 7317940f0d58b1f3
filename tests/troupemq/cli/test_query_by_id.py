"""Tests that `troupemq admin queryMsgById` finds a message by any of its ids."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from protocol.bodies_admin import TopicList
from protocol.codes import RequestCode, ResponseCode
from tests.compat.patience import wait_until
from tests.support.sockets import serving_broker, serving_namesrv
from tests.troupemq.fake_server import FakeServer, serve_routes
from troupemq.cli import cli
from troupemq.client.message import Message
from troupemq.client.producing.producer import Producer

Run = Callable[..., Result]
UNIQUE_ID = "7F00000100021B2C3D4E5F60718293A4"


def running(address: str) -> Run:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, [*arguments, "-n", address])

    return run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Commands against a broker that has messages in two topics."""
    with serving_namesrv(tmp_path / "names") as names:
        address = f"127.0.0.1:{names.port}"
        with serving_broker(tmp_path / "store", namesrv_address=address) as served:
            registered = served.broker.attachment.registered
            wait_until(lambda: registered.value == 1, "the broker is registered")
            with Producer("pg", address) as producer:
                producer.send(Message("Other", b"another one"))
            yield running(address)


def objects(done: Result) -> list[dict[str, Any]]:
    """Return the output of the command, without log lines of servers in this process."""
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def only(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.output
    (found,) = objects(done)
    return found


def sent_by(run: Run) -> dict[str, Any]:
    """Send a message, wait until it is indexed, and return the output of `send`."""
    sent = only(run("send", "-t", "Orders", "-b", "one book", "--json"))
    query = ("admin", "queryMsgById", "-i", sent["message_id"], "-t", "Orders")
    wait_until(lambda: run(*query).exit_code == 0, "the message is in the index")
    return sent


def test_each_printed_id_finds_the_message(run: Run) -> None:
    sent = sent_by(run)
    both = sent["message_id"], sent["offset_message_id"]
    for each in (*both, f" {both[0]} "):
        for where in ((), ("-t", "Orders")):
            found = only(run("admin", "queryMsgById", "-i", each, *where, "--json"))
            assert (found["body"], found["topic"]) == ("one book", "Orders")
            assert (found["message_id"], found["offset_message_id"]) == both
    done = run("admin", "queryMsgById", "-i", ",".join(both), "--json")
    assert [each["body"] for each in objects(done)] == ["one book"] * 2


def test_an_unknown_id_is_a_one_sentence_error(run: Run) -> None:
    sent = sent_by(run)
    for each, text in (
        (UNIQUE_ID, f"no message with the id {UNIQUE_ID} is in any topic: it was not stored, or"),
        ("nonsense", "no message with the id nonsense is in any topic"),
        (sent["offset_message_id"][:-4] + "FFFF", "can not find message by the offset"),
    ):
        done = run("admin", "queryMsgById", "-i", each, "--json")
        assert (done.exit_code, objects(done), done.stderr.count("\n")) == (1, [], 1)
        assert text in done.stderr
    done = run("admin", "queryMsgById", "-i", sent["message_id"], "-t", "Other")
    assert done.exit_code == 1 and "is in Other" in done.stderr
    done = run("admin", "queryMsgById", "-i", sent["message_id"], "-t", "Missing")
    assert done.exit_code == 1 and "no name server knows the topic Missing" in done.stderr


def test_an_unreachable_broker_is_reported_only_if_the_message_is_not_found() -> None:
    with FakeServer() as names, FakeServer() as broker, FakeServer() as gone:
        serve_routes(names, {"a": gone, "b": broker}, {"T": 1, "U": 1, "%RETRY%G": 1})
        body = TopicList(["%RETRY%G", "Nowhere", "T", "U"]).encode()
        names.on(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            lambda command: command.answer(body=body),
        )
        broker.on(
            RequestCode.QUERY_MESSAGE,
            lambda command: command.answer(ResponseCode.QUERY_NOT_FOUND, remark="none"),
        )
        gone.close()
        done = running(names.address)("admin", "queryMsgById", "-i", UNIQUE_ID)
        assert done.exit_code == 1 and gone.address in done.stderr
        asked = [broker.next(RequestCode.QUERY_MESSAGE).fields for _ in range(3)]
        assert [fields and fields["topic"] for fields in asked] == ["T", "U", "%RETRY%G"]
