"""`troupemq admin` without a cluster: how commands are found, what they take, how they print."""

import json
from datetime import datetime

import click
import pytest
from click.testing import CliRunner

from protocol.properties_file import parse_properties
from troupemq.cli import cli
from troupemq.cli.admin import admin
from troupemq.cli.admin.command import COMMANDS, SECTION_OF, SECTIONS
from troupemq.cli.admin.output import Output
from troupemq.cli.admin.times import parse_time
from troupemq.client.admin import Time
from troupemq.client.admin.brokers import properties_of, setting
from troupemq.client.admin.offsets import NEWEST
from troupemq.client.admin.reading import events_of

NOON = datetime(2026, 1, 31, 12, 0, 0, 250_000)


def test_the_help_lists_every_command_in_its_section() -> None:
    text = CliRunner().invoke(admin, ["--help"]).output
    places = [text.index(f"{section}:") for section in SECTIONS if section in SECTION_OF.values()]
    assert places == sorted(places)
    for name in COMMANDS:
        assert f"\n  {name} " in text, name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_has_json(name: str) -> None:
    done = CliRunner().invoke(cli, ["admin", name, "-h"])
    assert done.exit_code == 0
    assert "--json" in done.output
    assert COMMANDS[name].help


def test_a_command_is_found_in_any_case_and_by_its_alias() -> None:
    for name in ("topiclist", "TOPICLIST", "deleteAccessConfig"):
        assert CliRunner().invoke(admin, [name, "--help"]).exit_code == 0, name


def test_a_misspelled_name_gets_a_suggestion() -> None:
    done = CliRunner().invoke(admin, ["topicLst"])
    assert done.exit_code == 2
    assert "Did you mean topicList" in done.output


def test_options_have_the_originals_long_names() -> None:
    given = next(each for each in COMMANDS["updateTopic"].params if each.name == "broker")
    assert given.opts == ["-b", "--broker-addr", "--brokerAddr"]


def test_a_broker_command_needs_a_broker_or_cluster() -> None:
    done = CliRunner().invoke(admin, ["brokerStatus", "-n", "127.0.0.1:1"])
    assert done.exit_code == 2
    assert "no target named: give a broker with -b or a cluster with -c." in done.output


def test_a_missing_answer_is_a_one_sentence_error_with_exit_code_1() -> None:
    done = CliRunner().invoke(admin, ["topicList", "-n", "127.0.0.1:1", "--json"])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("troupemq: no name server answers: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NEWEST),
        ("1769857200250", 1769857200250),
        ("2026-01-31T12:00:00.250", int(NOON.timestamp() * 1000)),
        ("2026-01-31#12:00:00:250", int(NOON.timestamp() * 1000)),
    ],
)
def test_times_are_accepted_in_the_originals_forms_and_iso(text: str, expected: int) -> None:
    assert parse_time(text) == expected


def test_other_time_formats_are_refused() -> None:
    with pytest.raises(click.BadParameter, match="yesterday"):
        parse_time("yesterday")


def test_seconds_are_no_time_that_resets_a_group_to_its_first_message() -> None:
    """The output of `date +%s`, read as ms, was a day in January 1970."""
    with pytest.raises(click.BadParameter, match="looks like seconds: use ms, 1795943788000"):
        parse_time("1795943788")
    assert parse_time("0") == 0


def test_a_table_is_aligned_with_readable_times(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"topic": "A", "last_stored_ms": Time(0), "lag": 12},
        {"topic": "Orders", "last_stored_ms": Time(NOON.timestamp() * 1000), "lag": 3},
    ]
    Output(as_json=False).table(rows, "nothing")
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC   LAST STORED              LAG",
        "A       -                         12",
        "Orders  2026-01-31 12:00:00.250    3",
    ]
    Output(as_json=True).table(rows, "nothing")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [{**rows[0], "last_stored_ms": None}, rows[1]]


def test_an_empty_table_is_noted_only_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).table([], "There are no topics.")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "troupemq: There are no topics.\n")
    Output(as_json=True).table([], "There are no topics.")
    assert capsys.readouterr() == ("", "")


def test_settings_are_read_without_comments() -> None:
    assert properties_of(b"# x=y\nb=2\na = 1=1\nnothing\n") == {"a": "1=1", "b": "2"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("regionId", "M\u00fcnchen \u4e2d\U0001f600"),
        ("regionId", "  two blanks"),
        ("regionId", "a=b:c#d\\e\tf"),
        ("regionId", ""),
        ("x=y", "z"),
        ("a b", "c"),
        ("#key", "c"),
    ],
)
def test_a_setting_with_any_characters_is_sent_and_shown(key: str, value: str) -> None:
    sent = setting(key, value)
    assert sent.isascii(), "the original reads Latin-1"
    assert parse_properties(sent.decode()) == properties_of(sent) == {key: value}


def test_an_unescaped_value_of_the_original_is_shown_unchanged() -> None:
    assert properties_of(b"a=\\u1\nb=1\n") == {"a": "\\u1", "b": "1"}


def test_traces_of_old_and_new_clients_are_read() -> None:
    sent = ["Pub", "5", "r", "G", "T", "ID", "tag", "key", "h", "9", "2", "0", "OFF", "true"]
    taken = ["SubAfter", "REQ", "ID", "7", "true", "key", "0"]
    body = "".join("\x01".join(each) + "\x02" for each in (sent, [*sent, "c"], taken, ["New"]))
    first, second, third = events_of(body.encode())
    assert (first.kind, first.time_ms, first.cost_ms, first.client) == ("Pub", 5, "2", None)
    assert second.client == "c"
    assert (third.kind, third.message_id, third.time_ms) == ("SubAfter", "ID", None)


def test_trace_of_the_end_of_a_transaction_has_its_state() -> None:
    ended = ["EndTransaction", "5", "r", "G", "T", "ID", "tag", "key", "h", "2", "TX"]
    body = "\x01".join([*ended, "ROLLBACK_MESSAGE", "false\x02"])
    (event,) = events_of(body.encode())
    assert (event.host, event.state, event.client) == ("h", "ROLLBACK_MESSAGE", None)


@pytest.mark.parametrize(
    ("begun", "expected"),
    [("topicr", ["topicRoute"]), ("TOPICL", ["topicList"]), ("--h", ["--help"]), ("x", [])],
)
def test_commands_are_completed_in_any_case(begun: str, expected: list[str]) -> None:
    found = admin.shell_complete(click.Context(admin, **admin.context_settings), begun)
    assert [each.value for each in found] == expected


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_scripts_are_printed(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell], prog_name="troupemq")
    assert done.exit_code == 0
    assert "_TROUPEMQ_COMPLETE" in done.output
