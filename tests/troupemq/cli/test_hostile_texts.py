"""Tests that `troupemq admin` escapes all texts of clients (A41)."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from protocol.codes import RequestCode
from protocol.fastjson import loads_object
from protocol.frame import RemotingCommand
from tests.compat.patience import wait_until
from tests.support.brokers import send_command, subscription
from tests.support.sockets import Line, serving_broker, serving_namesrv
from troupemq.cli import cli
from troupemq.client.admin.members import plain_names
from troupemq.client.errors import understood

NASTY = "\x1b[2J\x1b]0;owned\x07\r\nforged: yes\x7f\x9b31m\u2028\u202egnp.exe"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")
COMMANDS = {
    "topicList": (),
    "topicRoute": ("-t", "Orders"),
    "topicStatus": ("-t", "Orders"),
    "consumerProgress": (),
    "consumerConnection": ("-g", "consumers"),
    "producerConnection": ("-g", "producers", "-t", "Orders"),
    "printMsg": ("-t", "Orders"),
    "queryMsgByKey": ("-t", "Orders", "-k", "book-1"),
    "queryMsgByOffset": ("-t", "Orders", "-b", "broker-a", "-i", "0", "-o", "0"),
}
WITHOUT = ("topicList", "topicRoute", "topicStatus", "queryMsgByKey")
"""Here only names that are checked are shown."""


@contextmanager
def attacked(root: Path) -> Iterator[str]:
    """A name server's address; its broker has a message and a client of a stranger's."""
    with serving_namesrv(root / "names") as names:
        address = f"127.0.0.1:{names.port}"
        with (
            serving_broker(root / "store", namesrv_address=address) as served,
            Line.to(served.ports.main) as stranger,
        ):
            registered = served.broker.attachment.registered
            wait_until(lambda: registered.value == 1, "the broker is registered")
            properties = f"KEYS\x01book-1 {NASTY}\x02TAGS\x01{NASTY}\x02note\x01{NASTY}\x02"
            sent = send_command(NASTY.encode(), topic="Orders", properties=properties)
            assert stranger.ask(sent).code == 0
            wanted = [subscription("Orders", NASTY)]
            consumer = ConsumerData("consumers", NASTY, NASTY, NASTY, wanted)
            data = HeartbeatData(NASTY, [ProducerData("producers")], [consumer])
            beat = RemotingCommand(RequestCode.HEART_BEAT, body=data.encode())
            assert stranger.ask(beat).code == 0
            yield address


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with attacked(tmp_path_factory.mktemp("attacked")) as address:
        yield address


@pytest.mark.parametrize("command", COMMANDS)
def test_a41_texts_from_clients_are_shown_escaped(command: str, namesrv: str) -> None:
    done = CliRunner().invoke(cli, ["admin", command, "-n", namesrv, *COMMANDS[command]])
    said = done.output
    assert done.exit_code == 0, said
    assert ("\\x1b[2J" in said) is (command not in WITHOUT), "it was there to be shown"
    assert not RAW.search(said), repr(said)
    assert not [line for line in said.splitlines() if line.startswith("forged")]


def test_running_info_with_unusual_queue_names_is_shown_unchanged() -> None:
    """A page that shows a member ended with an error for good."""
    found = loads_object("{mqTable:{{queueId:'x'}:{}}}")
    assert understood(plain_names, found) == {"mqTable": {"(('queueId', 'x'),)": {}}}
