"""`troupemq admin` against servers that are gone, or that answer rubbish; what it passes on."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import click
import pytest
from click.testing import CliRunner, Result

from protocol.bodies import BrokerData, ClusterInfo, MessageQueue
from protocol.bodies_admin import (
    ConsumeStatsBody,
    GroupList,
    OffsetWrapper,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from protocol.bodies_assignment import RequestMode
from protocol.bodies_tables import KVTable, SubscriptionGroupTable, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from tests.troupemq.fake_server import FakeServer, serve_routes
from troupemq.cli.admin import admin
from troupemq.cli.admin.command import COMMANDS
from troupemq.cli.admin.output import Output
from troupemq.client.admin import BrokerPlace
from troupemq.client.admin.flows import AdminFlows
from troupemq.client.admin.transfer import parse_export
from troupemq.client.errors import ClientError

GONE = "127.0.0.1:1"
ORDERED = TopicConfig("Ordered", 4, 2, 6, order=True)

Run = Callable[..., Result]


@pytest.fixture
def namesrv() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def broker(namesrv: FakeServer) -> Iterator[FakeServer]:
    """A master in a cluster of two: the other one is gone."""
    with FakeServer() as server:
        serve_routes(
            namesrv, {"b": server}, {"T": 2, "%RETRY%G": 1, "b": 1, "RMQ_SYS_TRACE_TOPIC": 1}
        )
        info = ClusterInfo(
            {
                "a": BrokerData("C", "a", {0: GONE}),
                "b": BrokerData("C", "b", {0: server.address}),
            },
            {"C": ["a", "b"]},
        )
        body = info.encode()
        namesrv.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.answer(body=body))
        yield server


@pytest.fixture
def run(namesrv: FakeServer) -> Run:
    def run(*arguments: str) -> Result:
        name, *others = arguments
        return CliRunner().invoke(admin, [name, "-n", namesrv.address, *others])

    return run


def test_a_failing_broker_does_not_stop_the_others(broker: FakeServer, run: Run) -> None:
    broker.succeed(RequestCode.GET_TOPIC_STATS_INFO)
    broker.succeed(RequestCode.UPDATE_AND_CREATE_TOPIC)
    done = run("updateTopic", "-c", "C", "-t", "T", "--json")
    assert done.exit_code == 1
    assert done.stderr == f"troupemq: {GONE}: connection refused\n"
    assert json.loads(done.stdout)["broker_address"] == broker.address


@pytest.mark.parametrize(
    ("name", "code", "field"),
    [
        ("wipeWritePerm", RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount"),
        ("addWritePerm", RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount"),
    ],
)
def test_an_unknown_broker_is_an_error_although_name_servers_answer_0(
    namesrv: FakeServer, broker: FakeServer, run: Run, name: str, code: RequestCode, field: str
) -> None:
    namesrv.on(code, lambda command: command.answer(fields={field: "0"}))
    assert run(name, "-b", "b").exit_code == 0
    done = run(name, "-b", "misspelt")
    assert done.exit_code == 1
    assert done.stderr == "troupemq: no broker misspelt is registered\n"


def test_a_failing_name_server_does_not_stop_the_others(namesrv: FakeServer) -> None:
    namesrv.succeed(RequestCode.PUT_KV_CONFIG)
    line = ["updateKvConfig", "-s", "S", "-k", "k", "-v", "v", "-n", f"{GONE};{namesrv.address}"]
    done = CliRunner().invoke(admin, line)
    assert done.exit_code == 1
    assert done.stdout == f"S: k is v at {namesrv.address}.\n"
    assert done.stderr == f"troupemq: {GONE}: connection refused\n"


def test_a_broker_named_by_its_address_needs_no_name_server(broker: FakeServer) -> None:
    broker.succeed(RequestCode.GET_TOPIC_STATS_INFO)
    broker.succeed(RequestCode.UPDATE_AND_CREATE_TOPIC)
    line = ["updateTopic", "-b", broker.address, "-t", "T", "-n", GONE]
    assert CliRunner().invoke(admin, line).exit_code == 0


def test_updatetopic_warns_about_unreadable_messages(broker: FakeServer, run: Run) -> None:
    ends = {MessageQueue("T", "b", number): TopicOffset(10, 13, 0) for number in range(4)}
    body = TopicStatsTable(ends).encode()
    code = RequestCode.GET_TOPIC_STATS_INFO
    broker.on(code, lambda command: command.answer(body=body))
    broker.succeed(RequestCode.UPDATE_AND_CREATE_TOPIC)
    done = run("updateTopic", "-b", broker.address, "-t", "T", "-r", "2", "-w", "3")
    assert done.exit_code == 0
    at = f"T at {broker.address}"
    assert f"6 messages of {at} can no longer be read (queues 2, 3)" in done.stderr
    assert f"queues 2 to 2 of {at} are written and not read" in done.stderr
    done = run("updateTopic", "-b", broker.address, "-t", "T", "-r", "4", "-w", "4", "--json")
    assert done.stderr == ""
    assert "unread_messages" not in json.loads(done.stdout)


def test_the_remark_of_a_success_is_shown(broker: FakeServer, run: Run) -> None:
    remark = "after a restart: listenPort"
    broker.succeed(RequestCode.GET_BROKER_CONFIG)
    broker.on(
        RequestCode.UPDATE_BROKER_CONFIG,
        lambda command: command.answer(ResponseCode.SUCCESS, remark=remark),
    )
    line = ("updateBrokerConfig", "-b", broker.address, "-k", "listenPort", "-v", "1")
    assert remark in run(*line).stdout
    assert json.loads(run(*line, "--json").stdout)["remark"] == remark


def test_consume_mode_is_set_at_the_masters_of_a_cluster(broker: FakeServer, run: Run) -> None:
    broker.succeed(RequestCode.SET_MESSAGE_REQUEST_MODE)
    done = run("setConsumeMode", "-c", "C", "-t", "T", "-g", "G", "-m", "pop", "-q", "3")
    assert done.exit_code == 1, "one master is down"
    assert done.stdout == f"Consume mode of G for T is POP at {broker.address}.\n"
    body = broker.next(RequestCode.SET_MESSAGE_REQUEST_MODE).body
    assert RequestMode.decode(body) == RequestMode("G", "POP", 3, "T")
    assert run("setConsumeMode", "-c", "C", "-t", "T", "-g", "G", "-m", "push").exit_code == 2


def test_a_misspelled_setting_of_a_broker_is_not_sent(broker: FakeServer, run: Run) -> None:
    """The broker's answer to an unknown key is a success, as in 4.9.7."""
    broker.on(
        RequestCode.GET_BROKER_CONFIG,
        lambda command: command.answer(ResponseCode.SUCCESS, body=b"flushDiskType=ASYNC_FLUSH\n"),
    )
    broker.succeed(RequestCode.UPDATE_BROKER_CONFIG)
    line = ("updateBrokerConfig", "-b", broker.address, "-v", "SYNC_FLUSH", "-k")
    done = run(*line, "flushDiskTyp")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "unknown setting flushDiskTyp: did you mean flushDiskType? nothing was" in done.stderr
    assert run(*line, "flushDiskType").exit_code == run(*line, "madeUp").exit_code == 0


@pytest.mark.parametrize(
    "line",
    [
        ("resetOffsetByTime", "-g", "G", "-t", "T", "-s", "99999999999999999999"),
        ("resetOffsetByTime", "-g", "G", "-t", "T", "-s", "-2"),
        ("printMsg", "-t", "T", "-b", "0001-01-01"),
        ("printMsg", "-t", "T", "-c", "nonsense"),
        ("printMsg", "-t", "T", "-c", "base64"),
        ("printMsg", "-t", "T", "-c", "\udcff"),
        ("queryCq", "-t", "T", "-q", "0", "-i", "99999999999999999999"),
        ("updateTopic", "-c", "C", "-t", "T", "-r", "99999999999"),
        ("consumeMessage", "-t", "T", "-c", "-1"),
        ("brokerConsumeStats", "-b", "h:1", "-l", "1_0"),
        ("startMonitoring", "-l", " 10"),
        ("clusterList", "-i", "nan"),
        ("clusterList", "-i", "1e300"),
        ("updateBrokerConfig", "-c", "C", "-k", "a", "-v", "1\nb=2"),
        ("consumerProgress", "-g", "\udcff"),
    ],
)
def test_numbers_beyond_their_field_are_refused_before_any_request(
    line: tuple[str, ...], namesrv: FakeServer, run: Run
) -> None:
    done = run(*line)
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    assert namesrv.received.empty()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("updateTopic -c C -t T -r 65537", "T: readQueueNums is 65537: a topic has 65536 queues"),
        ("updateSubGroup -c C -g G -q 65537", "G: retryQueueNums is 65537: a topic has 65536 que"),
        ("updateSubGroup -c C -g a/b", "a/b: the specified group[a/b] contains illegal characters"),
        ("cloneGroupOffset -s G -d a/b -t T", "the specified group[a/b] contains illegal"),
        ("updateKvConfig -s N -k $ref -v x", "no entry can be called $ref"),
    ],
)
def test_values_that_servers_could_not_reload_are_not_sent(
    broker: FakeServer, namesrv: FakeServer, run: Run, line: str, said: str
) -> None:
    sent: list[RemotingCommand] = []
    for server, code in (
        (broker, RequestCode.UPDATE_AND_CREATE_TOPIC),
        (broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
        (namesrv, RequestCode.PUT_KV_CONFIG),
    ):
        server.on(code, lambda command: sent.append(command) or command.answer())  # type: ignore[func-returns-value]
    done = run(*line.split())
    assert done.exit_code == 1
    assert f"troupemq: {said}" in done.stderr
    assert sent == []


def test_an_unknown_group_has_no_stored_offset(broker: FakeServer, run: Run) -> None:
    ends = TopicStatsTable({MessageQueue("T", "b", 0): TopicOffset(5, 9, 0)})
    broker.on(RequestCode.GET_TOPIC_STATS_INFO, lambda command: command.answer(body=ends.encode()))
    body = GroupList(["G", "old"]).encode()
    broker.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, lambda command: command.answer(body=body))

    def offset(command: RemotingCommand) -> RemotingCommand:
        group = (command.fields or {})["consumerGroup"]
        return command.answer(fields={"offset": "5" if group == "G" else "4"})

    broker.on(RequestCode.QUERY_CONSUMER_OFFSET, offset)
    kept = json.loads(run("queues", "-t", "T", "-g", "G", "--json").stdout)
    assert (kept["group_offset"], kept["group_offset_kept"]) == (5, True)
    lost = json.loads(run("queues", "-t", "T", "-g", "old", "--json").stdout)
    assert (lost["group_offset"], lost["group_offset_kept"]) == (4, False)
    done = run("queues", "-t", "T", "-g", "misspelled", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["group_offset_kept"] is None


def test_a_group_with_preset_offsets_has_progress(broker: FakeServer, run: Run) -> None:
    """A new group has no retry topic, by which its brokers are found."""
    stats = ConsumeStatsBody({MessageQueue("T", "b", 0): OffsetWrapper(9, 4, 0)})

    def told(command: RemotingCommand) -> RemotingCommand:
        is_known = (command.fields or {})["consumerGroup"] == "cloned"
        return command.answer(body=(stats if is_known else ConsumeStatsBody()).encode())

    broker.on(RequestCode.GET_CONSUME_STATS, told)
    done = run("consumerProgress", "-g", "cloned", "--json")
    assert json.loads(done.stdout.splitlines()[0])["lag"] == 5
    assert done.stderr == f"troupemq: {GONE}: connection refused\n"
    done = run("consumerProgress", "-g", "misspelled")
    assert done.exit_code == 1
    assert "consumer group misspelled not found" in done.stderr


@pytest.mark.parametrize("command", ["clusterRT", "checkMsgSendRT", "sendMsgStatus"])
def test_trials_that_fail_or_have_no_size_fail(
    command: str, namesrv: FakeServer, broker: FakeServer, run: Run
) -> None:
    """`clusterRT` ended with exit code 0 if no message was stored; 2 GiB were sent as they are."""
    broker.on(
        RequestCode.SEND_MESSAGE_V2,
        lambda asked: asked.answer(ResponseCode.MESSAGE_ILLEGAL, remark="no"),
    )
    broker.succeed(RequestCode.HEART_BEAT)
    broker.succeed(RequestCode.UNREGISTER_CLIENT)
    options = {"clusterRT": ["-c", "C", "-r", "1", "-a", "2"], "checkMsgSendRT": ["-t", "b"]}
    given = [*options.get(command, ["-b", "b"])]
    if command != "clusterRT":
        given += ["-a" if command == "checkMsgSendRT" else "-c", "2"]
    done = run(command, *given)
    assert done.exit_code == 1 and "2 of 2 messages were not stored." in done.stderr
    for size in ("0", "2147483647"):
        done = run(command, *given, "-s", size)
        assert done.exit_code == 2 and "is not in the range 1<=x<=4194304" in done.stderr


@pytest.mark.parametrize("ids", ["", " ", ","])
def test_a_question_without_a_message_id_is_refused(ids: str, run: Run) -> None:
    """The command ended silently, as if it had shown something."""
    done = run("queryMsgById", "-i", ids)
    assert done.exit_code == 2 and "it names no message id." in done.stderr


ANSWERS = (b"", b"rubbish", b"{}", b"[]", b'{"a":{"b":[1]}}', b"null", b"\xff\x00")
SENDING = {"clusterRT", "checkMsgSendRT", "sendMsgStatus", "sendMessage"}
ARGUMENTS = {"-t": "T", "-g": "G", "-c": "C", "-k": "k", "-v": "b:1", "-m": "get", "-p": "6"}
ASKED_RIGHT = (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - SENDING))
def test_invalid_answers_are_a_one_sentence_error(
    name: str,
    namesrv: FakeServer,
    broker: FakeServer,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # exports go there
    for body in ANSWERS:
        for code in RequestCode:
            broker.on(code, _answering(body))
            if code not in ASKED_RIGHT:
                namesrv.on(code, _answering(body))
        done = run(name, *_arguments(name, broker.address), "--json")
        assert done.exception is None or isinstance(done.exception, SystemExit), body
        assert done.exit_code in (0, 1), done.stderr
        assert all(json.loads(line) is not None for line in done.stdout.splitlines())


def _arguments(name: str, address: str) -> Iterator[str]:
    for param in COMMANDS[name].params:
        short = param.opts[0]
        if isinstance(param, click.Argument):
            yield "G"
        elif param.name in ("broker_addr", "broker"):
            yield from (short, address)
        elif param.name in ("broker_name", "rounds"):
            yield from (short, "b" if param.name == "broker_name" else "1")
        elif name == "queryMsgById" and short == "-i":
            yield from (short, f"7F000001{int(address.split(':')[1]):08X}{0:016X}")
        elif name == "setConsumeMode" and short == "-m":
            yield from (short, "POP")
        elif param.required:
            yield from (short, __file__ if param.name == "source" else ARGUMENTS.get(short, "0"))


def _answering(body: bytes) -> Callable[[RemotingCommand], RemotingCommand]:
    return lambda command: command.answer(body=body)


CONTENTS = {
    "brokers": [{"cluster": "C", "broker": "b", "topics": [ORDERED.to_json()], "groups": []}],
    "orders": {"Ordered": "b:1"},
}


def _serve_tables(namesrv: FakeServer, broker: FakeServer) -> None:
    """Serve empty tables."""
    tables = {
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: TopicList([]).encode(),
        RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigTable().encode(),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupTable().encode(),
        RequestCode.GET_BROKER_CONFIG: b"brokerName=b\nbrokerClusterName=C\n",
    }
    for code, body in tables.items():
        broker.on(code, _answering(body))
    namesrv.on(
        RequestCode.GET_KV_CONFIG, lambda command: command.answer(ResponseCode.QUERY_NOT_FOUND)
    )


def test_export_refused_by_a_full_disk_leaves_the_previous_file(
    namesrv: FakeServer, broker: FakeServer, run: Run, tmp_path: Path
) -> None:
    """The previous export was replaced by the first bytes of the new one."""
    _serve_tables(namesrv, broker)
    path = tmp_path / "all.json"
    path.write_text("previous")
    before = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (20, before[1]))
    try:
        done = run("export", "-b", broker.address, "-f", str(path))
    finally:
        setrlimit(RLIMIT_FSIZE, before)
    assert (done.exit_code, path.read_text()) == (1, "previous")
    assert f"{path}" in done.stderr and "File too large" in done.stderr
    assert run("export", "-b", broker.address, "-f", str(path)).exit_code == 0
    assert parse_export(path.read_bytes())


def test_export_does_not_replace_a_pipe(
    namesrv: FakeServer, broker: FakeServer, run: Run, tmp_path: Path
) -> None:
    _serve_tables(namesrv, broker)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR)
    try:
        assert run("export", "-b", broker.address, "-f", str(path)).exit_code == 0
        assert path.is_fifo() and parse_export(os.read(reader, 1 << 16))
    finally:
        os.close(reader)


def test_import_applies_an_export_with_ordered_topics_first(
    namesrv: FakeServer, broker: FakeServer, run: Run, tmp_path: Path
) -> None:
    _serve_tables(namesrv, broker)
    broker.succeed(RequestCode.UPDATE_AND_CREATE_TOPIC)
    namesrv.succeed(RequestCode.PUT_KV_CONFIG)
    path = tmp_path / "all.json"
    path.write_text(json.dumps(CONTENTS))
    done = run("import", "-b", broker.address, "-f", str(path), "--json")
    assert json.loads(done.stdout)["topics"] == ["Ordered"]
    order = namesrv.next(RequestCode.PUT_KV_CONFIG).fields
    assert order == {"namespace": "ORDER_TOPIC_CONFIG", "key": "Ordered", "value": "b:1"}
    fields = broker.next(RequestCode.UPDATE_AND_CREATE_TOPIC).fields or {}
    assert (fields["readQueueNums"], fields["writeQueueNums"]) == ("4", "2")
    exported = TopicConfigTable({"Ordered": ORDERED}).encode()
    broker.on(RequestCode.GET_ALL_TOPIC_CONFIG, lambda command: command.answer(body=exported))
    namesrv.on(RequestCode.GET_KV_CONFIG, lambda command: command.answer(fields={"value": "b:1"}))
    assert json.loads(run("export", "-b", broker.address, "--json").stdout) == CONTENTS


def test_a_broker_missing_in_the_file_gets_the_common_settings() -> None:
    other = replace(ORDERED, perm=4)
    two = [
        {"cluster": "C", "broker": name, "topics": [each.to_json()], "groups": []}
        for name, each in (("a", ORDERED), ("b", ORDERED))
    ]
    new = BrokerPlace("D", "new", 0, GONE)
    alike = parse_export(json.dumps({"brokers": two, "orders": {}}).encode())
    assert alike.for_broker(new).topics == {"Ordered": ORDERED}
    two[1]["topics"] = [other.to_json()]
    differing = parse_export(json.dumps({"brokers": two, "orders": {}}).encode())
    assert differing.for_broker(BrokerPlace("C", "b", 0, GONE)).topics == {"Ordered": other}
    with pytest.raises(ClientError, match="different settings of Ordered"):
        differing.for_broker(new)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "[" * 100_000,
        '{"brokers": 5, "orders": {}}',
        '{"brokers": [5], "orders": {}}',
        '{"brokers": [], "orders": []}',
        '{"brokers": [], "orders": {"T": "b:many"}}',
        json.dumps(CONTENTS).replace("Ordered", "../x"),
        json.dumps(CONTENTS).replace('"readQueueNums": 4', '"readQueueNums": 1e99'),
        json.dumps(CONTENTS).replace('"perm": 6', '"perm": 60'),
    ],
)
def test_a_file_not_written_by_export_is_a_one_sentence_error(text: str) -> None:
    with pytest.raises(ClientError, match="not what `troupemq admin export` writes"):
        parse_export(text.encode())


def test_foreign_texts_are_escaped_and_keep_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = Output(as_json=False)
    out.table([{"name": "漢字", "lag": 1}, {"name": "a\x1b[2Jb", "lag": 22}], "")
    out.item({}, "one\ntwo \u202e")
    assert capsys.readouterr().out.splitlines() == [
        "NAME       LAG",
        "漢字         1",
        r"a\x1b[2Jb   22",
        r"one\ntwo \u202e",
    ]


def test_characters_a_terminal_cannot_show_are_escaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = TextIOWrapper(BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdout", stdout)
    Output(as_json=False).item({}, "größer")
    Output(as_json=True).item({"a": "größer"}, "")
    stdout.flush()
    assert isinstance(stdout.buffer, BytesIO)
    lines = stdout.buffer.getvalue().decode().splitlines()
    assert lines[0] == r"gr\xf6\xdfer"
    assert json.loads(lines[1]) == {"a": "größer"}


def test_ctrl_c_ends_only_endless_commands_with_success(
    namesrv: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AdminFlows, "ask_namesrv", interrupted)
    done = run("topicList")
    assert (done.exit_code, done.output) == (130, "")
    done = run("clusterList", "-i", "1")
    assert (done.exit_code, done.output) == (0, "")


def test_timers_of_a_broker_are_shown_by_level(broker: FakeServer, run: Run) -> None:
    table = {
        "timersOfLevel_2": "7,1700000000000,9,2,1,0,35,0",
        "timersOfLevel_x": "1",
        "other": "1",
    }
    body = KVTable(table).encode()
    broker.on(RequestCode.GET_BROKER_RUNTIME_INFO, lambda command: command.answer(body=body))
    (row,) = map(json.loads, run("timers", "--json", "-b", broker.address).stdout.splitlines())
    assert (row["level"], row["pending"], row["delivered"], row["late_max_ms"]) == (2, 7, 2, 35)
    assert row["next_due_ms"] == 1_700_000_000_000 and row["late_ms"] > 0


@pytest.mark.parametrize("option", ["-s", "-m", "-d"])
def test_a_misspelled_true_did_not_silently_mean_false(option: str, run: Run) -> None:
    """`updateSubGroup -s yes` stopped the consumption of a group."""
    done = run("updateSubGroup", "-c", "C", "-g", "G", option, "yes")
    assert done.exit_code == 2 and "'yes' is neither true nor false." in done.output


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("topicStatus", "-t", "Ordres"), "; did you mean the topic Orders?"),
        (("rebalances", "biling"), "; did you mean the group billing?"),
        (("topicStatus", "-t", "Invoices"), "no name server knows the topic Invoices"),
        (("updateTopic", "-t", "T", "-c", "DefaultClustr"), "; did you mean the cluster"),
        (("updateTopic", "-t", "T", "-c", ""), "no broker of the cluster '' is registered"),
    ],
)
def test_a_misspelled_name_was_told_without_the_one_that_was_meant(
    namesrv: FakeServer, run: Run, line: tuple[str, ...], told: str
) -> None:
    namesrv.on(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        lambda command: command.answer(ResponseCode.TOPIC_NOT_EXIST),
    )
    topics = TopicList(["Orders", "%RETRY%billing"]).encode()
    code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
    namesrv.on(code, lambda command: command.answer(body=topics))
    place = BrokerData("DefaultCluster", "b", {0: "127.0.0.1:1"})
    info = ClusterInfo({"b": place}, {"DefaultCluster": ["b"]}).encode()
    namesrv.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.answer(body=info))
    done = run(*line)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert told in done.stderr


def test_an_empty_list_of_members_was_told_as_a_topic_without_queues(run: Run) -> None:
    done = run("allocateMQ", "-t", "T", "-i", " , ")
    assert done.exit_code == 2 and "it names no member." in done.output
