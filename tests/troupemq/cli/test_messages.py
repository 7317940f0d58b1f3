"""`send` and `consume` from a terminal and in a pipe."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from errno import EBADF, ENOSPC, EPIPE
from io import StringIO
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, _NamedTextIOWrapper

from protocol.codes import COMPRESSED, RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.send import SendMessageHeader
from protocol.properties import parse
from tests.troupemq.client.consuming.test_listener import view
from tests.troupemq.client.consuming.test_orderly_consumer import LockingBroker
from tests.troupemq.client.receiving.pop_broker import PopBroker
from tests.troupemq.fake_broker import TOPIC, FakeBroker
from tests.troupemq.fake_server import FakeServer
from troupemq import interrupts
from troupemq.cli import cli, messages
from troupemq.client.consuming.listener import RetryLater

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeServer() as namesrv, FakeServer() as server:
        made = FakeBroker(namesrv, server)
        server.on(RequestCode.SEND_MESSAGE_V2, stored)
        yield made


def stored(command: RemotingCommand) -> RemotingCommand:
    assert command.fields is not None
    fields = {"msgId": "OFFSETID", "queueId": command.fields["e"], "queueOffset": "42"}
    return command.answer(fields=fields)


def invoke(broker: FakeBroker, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    command = [*arguments, "-t", TOPIC, "-n", broker.namesrv.address]
    result = CliRunner().invoke(cli, command, input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_send_prints_the_messages_id_queue_and_offset(broker: FakeBroker) -> None:
    code, out, _ = invoke(
        broker, "send", "-b", "héllo", "--tags", "a", "-k", "k1", "-k", "k2", "-p", "x=y=z"
    )
    assert code == 0 and out.startswith("OK ") and " at 42" in out
    command = broker.server.next(RequestCode.SEND_MESSAGE_V2)
    properties = parse((SendMessageHeader.of_command(command).properties or "").encode())
    assert command.body == "héllo".encode()
    assert (properties["TAGS"], properties["KEYS"], properties["x"]) == ("a", "k1 k2", "y=z")


def test_send_reads_each_line_of_stdin_as_a_message(broker: FakeBroker) -> None:
    code, out, _ = invoke(broker, "send", "--json", "--count", "2", stdin="one\ntwo\n")
    assert code == 0
    results = [json.loads(line) for line in out.splitlines()]
    assert [(each["status"], each["queue_offset"]) for each in results] == [("OK", 42)] * 4
    assert len({each["message_id"] for each in results}) == 4
    commands = [broker.server.next(RequestCode.SEND_MESSAGE_V2) for _ in range(4)]
    assert sorted(bytes(command.body or b"") for command in commands) == [
        b"one",
        b"one",
        b"two",
        b"two",
    ]


def test_an_empty_pipe_reports_that_nothing_was_sent(broker: FakeBroker) -> None:
    """`send -t Orders` without -b ended without a word."""
    code, out, err = invoke(broker, "send")
    assert (code, out) == (0, "") and "nothing was sent: stdin is empty" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "-t", "T", "--wait-s", "nan"),
        ("consume", "-t", "T", "--wait-s", "inf"),
        ("consume", "-t", "T", "--wait-s", "-1"),
        ("top", "--interval", "nan"),
        ("job", "redrive", "g", "--rate", "nan"),
        ("job", "restore", "a", "T", "--rate", "nan"),
        ("job", "restore", "a", "T", "--from-offset", "1_0"),
        ("store", "backup", "/", "b", "--rate", "inf"),
    ],
)
def test_a_time_rate_or_offset_is_a_finite_number(arguments: tuple[str, ...]) -> None:
    """`--wait-s nan` ended at once, and `inf` with a traceback."""
    result = CliRunner().invoke(cli, [*arguments])
    assert result.exit_code == 2 and "Invalid value for '--" in result.output, result.output


@pytest.mark.parametrize("number", [ENOSPC, EPIPE])
def test_a_closed_output_ends_consume_and_the_message_is_redelivered(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """`consume | head -1` went on for ever, and took each message towards the dead letters."""
    printer, ended = messages._Printer(None, False), list[bool]()
    printer.on_enough = lambda: ended.append(True)

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(click, "echo", fail)
    result = printer([view()])
    assert isinstance(result, RetryLater) and ended and printer.is_over
    assert printer.failure is not None and printer.printed == 0
    assert isinstance(printer([view()]), RetryLater)


class FullDisk(StringIO):
    def write(self, text: str) -> int:
        raise OSError(ENOSPC, os.strerror(ENOSPC))


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["store", "dump", "."]])
def test_output_without_room_was_a_traceback_or_told_as_a_failure_to_read(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with redirect_stdout(FullDisk()), pytest.raises(SystemExit) as end:
        cli(words)
    assert end.value.code == 1
    assert capsys.readouterr().err == (
        "troupemq: cannot write the output: No space left on device.\n"
    )


class WriteOnly:
    def isatty(self) -> bool:
        return False

    @property
    def buffer(self) -> Iterator[bytes]:
        raise OSError(EBADF, os.strerror(EBADF))


@pytest.mark.parametrize(
    ("stdin", "told"),
    [
        (None, "stdin is closed: give a body with -b"),
        (WriteOnly(), "stdin cannot be read: Bad file"),
    ],
)
def test_a_send_without_a_readable_stdin_was_a_traceback(
    stdin: object, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    with FakeServer() as server, pytest.raises(SystemExit) as end:
        cli(["send", "-t", "T", "-n", server.address])
    assert end.value.code == 1
    assert told in (said := capsys.readouterr().err) and said.count("\n") == 1


def test_a_full_disk_behind_stdout_is_a_one_sentence_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`job list > /dev/full` was a traceback."""

    def full(*_: object) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(click.Group, "invoke", full)
    result = CliRunner().invoke(cli, ["job", "list"])
    assert (result.exit_code, result.output) == (
        1,
        "troupemq: cannot write the output: No space left on device.\n",
    )


def test_an_empty_line_is_an_error_after_earlier_lines_were_sent(
    broker: FakeBroker,
) -> None:
    code, out, err = invoke(broker, "send", stdin="one\r\ntwo\n\nfour\n")
    assert (code, out.count("OK "), out.count("\n")) == (1, 2, 2)
    assert err == "troupemq: line 3 of stdin is empty: a message needs a body\n"
    assert {bytes(broker.server.next(SEND).body or b"") for _ in range(2)} == {b"one", b"two"}
    assert invoke(broker, "send", "-b", "")[::2] == (
        1,
        "troupemq: the message body length is zero\n",
    )


def test_bytes_that_are_not_text_are_sent_unchanged(broker: FakeBroker) -> None:
    assert invoke(broker, "send", "-b", "\udcff")[0] == 0  # so Python hands over a byte 255
    assert broker.server.next(SEND).body == b"\xff"


def test_a_refused_send_is_a_one_sentence_error_with_exit_code_1(broker: FakeBroker) -> None:
    broker.server.on(
        RequestCode.SEND_MESSAGE_V2,
        lambda command: command.answer(ResponseCode.MESSAGE_ILLEGAL, remark="too long"),
    )
    code, out, err = invoke(broker, "send", "-b", "x")
    assert (code, out) == (1, "")
    assert err == "troupemq: b answered MESSAGE_ILLEGAL: too long\n"


@pytest.mark.parametrize("option", ["-p", "--property"])
def test_a_property_without_a_value_is_a_usage_error(broker: FakeBroker, option: str) -> None:
    code, _, err = invoke(broker, "send", "-b", "x", option, "x")
    assert code == 2 and "NAME=VALUE" in err


def test_consume_prints_and_counts(broker: FakeBroker) -> None:
    broker.add(0, b"one", TAGS="a", KEYS="k1 k2")
    code, out, _ = invoke(broker, "consume", "-g", "g", "--count", "1", "--json")
    assert code == 0
    message = json.loads(out)
    assert (message["body"], message["tags"], message["keys"]) == ("one", "a", ["k1", "k2"])
    assert broker.committed["g", 0] == 1
    assert broker.members["g"] == []


def test_consume_stops_at_the_requested_count(broker: FakeBroker) -> None:
    for number in range(20):
        broker.add(0, b"%02d" % number)
    lines: list[str] = []
    for _ in range(4):
        code, out, _ = invoke(broker, "consume", "-g", "g", "--count", "5")
        assert code == 0
        lines += out.splitlines()
    assert [line.split()[-1] for line in lines] == [f"{number:02}" for number in range(20)]


NASTY = b"\x1b]0;owned\x07\rx\ny\xc2\x9b2J"


def test_a_pipe_gets_the_body_unchanged(broker: FakeBroker) -> None:
    broker.add(0, NASTY, TAGS="a\x1bb")
    _, out, _ = invoke(broker, "consume", "-g", "g", "--count", "1")
    assert out.endswith(f"+0 [a\\x1bb] {NASTY.decode()}\n"), "what is around it is escaped"


def test_a_terminal_gets_no_control_characters(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.add(0, NASTY, TAGS="a\x1bb")
    monkeypatch.setattr(_NamedTextIOWrapper, "isatty", lambda _: True)
    _, out, _ = invoke(broker, "consume", "-g", "g", "--count", "1")
    assert out.endswith("+0 [a\\x1bb] \\x1b]0;owned\\x07\\rx\\ny\\x9b2J\n")


def test_a_broker_error_is_one_line_on_stderr(broker: FakeBroker) -> None:
    def refused(command: RemotingCommand) -> RemotingCommand:
        return command.answer(ResponseCode.NO_PERMISSION, remark="no\x1b[2J\r\nsent \u202eok")

    broker.server.on(RequestCode.SEND_MESSAGE_V2, refused)
    code, _, err = invoke(broker, "send", "-b", "x")
    assert code == 1 and err.count("\n") == 1 and "no\\x1b[2J sent \\u202eok" in err


def test_a_binary_body_is_shown_in_base64(broker: FakeBroker) -> None:
    broker.add_raw(0, b"\xff\x00")
    _, out, _ = invoke(broker, "consume", "-g", "g", "--count", "1", "--json")
    assert json.loads(out)["body_base64"] == "/wA="


def test_consume_times_out_when_too_few_messages_arrive(broker: FakeBroker) -> None:
    code, out, err = invoke(broker, "consume", "-g", "g", "--count", "2", "--wait-s", "0.1")
    assert (code, out) == (1, "")
    assert err == (
        "troupemq: no new messages: topic T is empty\ntroupemq: 0 of 2 messages came in 0.1 s.\n"
    )


def test_an_unreachable_name_server_is_a_one_sentence_error(broker: FakeBroker) -> None:
    broker.namesrv.close()
    code, _, err = invoke(broker, "consume", "--count", "1")
    assert code == 1
    assert err.startswith("troupemq: no name server answers: ") and err.count("\n") == 1


def test_a_delay_level_is_sent_to_the_broker(broker: FakeBroker) -> None:
    code, _, _ = invoke(broker, "send", "-b", "x", "--delay-level", "3")
    assert code == 0
    header = SendMessageHeader.of_command(broker.server.next(RequestCode.SEND_MESSAGE_V2))
    assert parse((header.properties or "").encode())["DELAY"] == "3"


def test_a_delay_or_a_time_makes_a_timer_whose_handle_is_printed(broker: FakeBroker) -> None:
    def timed(command: RemotingCommand) -> RemotingCommand:
        answer = stored(command)
        assert answer.fields is not None
        answer.fields["recallHandle"] = "HANDLE"
        return answer

    broker.server.on(SEND, timed)
    for option, value, name, property_value in (
        ("--delay", "1.5", "TIMER_DELAY_MS", "1500"),
        ("--deliver-at", "1795188797085", "TIMER_DELIVER_MS", "1795188797085"),
        ("--deliver-at", "2026-11-20T12:00:00+00:00", "TIMER_DELIVER_MS", "1795176000000"),
    ):
        code, out, _ = invoke(broker, "send", "-b", "later", option, value)
        assert code == 0 and out.endswith(" at 42, recall handle HANDLE\n")
        header = SendMessageHeader.of_command(broker.server.next(SEND))
        assert parse((header.properties or "").encode())[name] == property_value
    code, out, _ = invoke(broker, "send", "-b", "later", "--delay", "9", "--json")
    assert json.loads(out)["recall_handle"] == "HANDLE"
    code, _, err = invoke(broker, "send", "-b", "x", "--delay", "9", "--delay-level", "3")
    assert code == 1 and "one of them" in err
    code, _, err = invoke(broker, "send", "-b", "x", "--deliver-at", "tomorrow")
    assert code == 2 and "invalid time 'tomorrow'" in err


def test_consume_one_by_one_acknowledges_what_it_has_printed() -> None:
    with FakeServer() as namesrv, FakeServer() as server:
        broker = PopBroker(namesrv, server, {TOPIC: 1})
        broker.add(b"one", b"two", b"three", topic=TOPIC)
        where = ["-t", TOPIC, "-n", namesrv.address]
        done = CliRunner().invoke(cli, ["consume", "--simple", "--count", "2", *where])
        assert done.exit_code == 0, done.stderr
        assert [line.split()[-1] for line in done.stdout.splitlines()] == ["one", "two"]
        assert broker.acked == [b"one", b"two"]
        done = CliRunner().invoke(cli, ["consume", "--simple", "--broadcast", *where])
        assert done.exit_code == 2 and "use one" in done.stderr
        server.on(
            RequestCode.POP_MESSAGE,
            lambda command: command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        )
        done = CliRunner().invoke(cli, ["consume", "--simple", *where])
        assert done.exit_code == 1
        assert "needs TroupeMQ or RocketMQ 5" in done.stderr


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_consume_one_by_one_goes_on_behind_an_unreadable_message(options: list[str]) -> None:
    """The thread that receives has ended without a word."""
    with FakeServer() as namesrv, FakeServer() as server:
        broker = PopBroker(namesrv, server, {TOPIC: 1})
        broker.add(b"unreadable", b"two", topic=TOPIC)
        broker.ready[TOPIC][0] = replace(broker.ready[TOPIC][0], sys_flag=COMPRESSED)
        where = ["-t", TOPIC, "-n", namesrv.address, *options]
        done = CliRunner().invoke(cli, ["consume", "--simple", "--count", "1", *where])
        assert done.exit_code == 0, done.stderr
        assert "unreadable is not printed: " in done.stderr and "two" in done.stdout
        assert broker.acked == [b"two"]


def test_consume_filters_by_sql92(broker: FakeBroker) -> None:
    broker.server.succeed(RequestCode.CHECK_CLIENT_CONFIG)
    broker.add(0, b"one")
    code, _, _ = invoke(broker, "consume", "-g", "g", "--count", "1", "--sql", "amount > 3")
    assert code == 0
    (subscription,) = [
        each
        for data in next(iter(broker.beats.values())).consumer_data_set
        for each in data.subscription_data_set
        if each.topic == TOPIC
    ]
    assert (subscription.expression_type, subscription.sub_string) == ("SQL92", "amount > 3")


def test_tags_and_sql92_exclude_each_other(broker: FakeBroker) -> None:
    code, _, err = invoke(broker, "consume", "--tags", "a", "--sql", "amount > 3", "--count", "1")
    assert code == 1 and "not by both" in err


@pytest.mark.parametrize("option, kept_by_broker", [("--orderly", True), ("--broadcast", False)])
def test_consume_works_in_order_and_in_broadcast(
    broker: FakeBroker,
    option: str,
    kept_by_broker: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    broker = LockingBroker(broker.namesrv, broker.server)
    broker.add(0, b"one")
    code, out, _ = invoke(broker, "consume", "-g", "g", "--count", "1", option)
    assert code == 0 and out.endswith(" one\n")
    assert (broker.committed.get(("g", 0)) == 1) == kept_by_broker
    assert any(tmp_path.rglob("offsets.json")) != kept_by_broker


def test_late_signal_ends_a_consume_that_cannot_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a full pipe, as that of `| less`, it took 30 s to stop, whatever the signals."""
    moment, codes = [100.0], list[int]()
    monkeypatch.setattr(interrupts, "monotonic", lambda: moment[0])
    monkeypatch.setattr(os, "_exit", codes.append)
    printer = messages._Printer(None, as_json=False)
    with messages._until_signalled(printer):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert (printer.is_over, codes) == (True, [])
        moment[0] += interrupts.PATIENCE_S + 0.1
        signal.raise_signal(signal.SIGTERM)
        assert codes == [interrupts.INTERRUPTED]
