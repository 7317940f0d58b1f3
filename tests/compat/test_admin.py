"""`troupemq admin`: every command, against the official servers and ours, with a live consumer."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.compat.conftest import SERVER_KIND, MakeBroker, MakeNameServer, wait_for_route
from tests.compat.inhabited import MESSAGE_COUNT, inhabited
from tests.compat.servers import BROKER_NAME, CLUSTER, Broker, OurBroker
from troupemq import SendResult
from troupemq.cli.admin import admin
from troupemq.cli.admin.command import COMMANDS

TOPIC, GROUP, KEY = "IT-cli", "IT-cli-group", "order-1"

Run = Callable[..., list[Any]]
"""Runs a command with --json: the objects that it prints."""


@pytest.fixture(scope="module", params=sorted({SERVER_KIND, "official"}))
def served(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> Iterator[Broker]:
    """Servers of their own, of each kind."""
    scratch = tmp_path_factory.mktemp("admin")
    with (
        make_name_server(request.param, scratch / "name-server") as name_server,
        make_broker(
            request.param, scratch / "broker", name_server, traceTopicEnable="true"
        ) as broker,
    ):
        yield broker


@pytest.fixture(scope="module")
def run(served: Broker) -> Run:
    def run(*arguments: str) -> list[Any]:
        done = invoke(served, *arguments, "--json")
        assert done.exit_code == 0, f"{arguments}: {done.output} {done.stderr}"
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def invoke(served: Broker, *arguments: str) -> Result:
    name, *others = arguments
    line = [name, "-n", served.name_server.address, *others]
    return CliRunner().invoke(admin, line, catch_exceptions=False)


@pytest.fixture(scope="module")
def sent(served: Broker, run: Run) -> Iterator[list[SendResult]]:
    """A topic with messages, and a member of a group that has consumed them and stays."""
    run("updateTopic", "-b", served.address, "-t", TOPIC, "-r", "4", "-w", "4")
    wait_for_route(served, TOPIC)
    with inhabited(served, TOPIC, GROUP, KEY) as found:
        yield found.results


def progress(run: Run) -> list[Any]:
    """Return the group's offsets in the topic's queues."""
    return [row for row in run("consumerProgress", "-g", GROUP) if row["topic"] == TOPIC]


def only(rows: list[Any]) -> Any:
    assert len(rows) == 1, rows
    return rows[0]


def test_topic_commands_work(run: Run, served: Broker, sent: list[SendResult]) -> None:
    assert {"topic": TOPIC} in run("topicList")
    row = {"cluster": CLUSTER, "topic": TOPIC, "group": GROUP}
    assert row in run("topicList", "-c")
    (route,) = run("topicRoute", "-t", TOPIC)
    assert only(route["queues"])["write_queues"] == 4
    assert only(run("topicRoute", "-t", TOPIC, "-l"))["addresses"] == {"0": served.address}
    status = run("topicStatus", "-t", TOPIC)
    assert sum(row["max_offset"] - row["min_offset"] for row in status) >= MESSAGE_COUNT
    assert run("topicClusterList", "-t", TOPIC) == [{"cluster": CLUSTER}]
    shared = run("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2")
    assert [row["queue_id"] for row in shared if row["member"] == "10.0.0.2"] == [2, 3]
    assert only(run("statsAll", "-t", TOPIC))["group"] == GROUP
    other = f"{TOPIC}-other"
    run("updateTopic", "-c", CLUSTER, "-t", other, "-r", "2", "-w", "2", "-o", "true")
    wait_for_route(served, other)
    assert only(run("updateOrderConf", "-t", other, "-m", "get"))["order"] == f"{BROKER_NAME}:2"
    run("updateOrderConf", "-t", other, "-m", "put", "-v", f"{BROKER_NAME}:1")
    run("updateOrderConf", "-t", other, "-m", "delete")
    assert only(run("updateOrderConf", "-t", other, "-m", "get"))["order"] is None
    changed = only(run("updateTopicPerm", "-b", served.address, "-t", other, "-p", "4"))
    assert (changed["perm_before"], changed["perm"]) == (6, 4)
    run("deleteTopic", "-c", CLUSTER, "-t", other)
    assert {"topic": other} not in run("topicList")


def test_broker_commands_work(run: Run, served: Broker, sent: list[SendResult]) -> None:
    assert only(run("clusterList"))["address"] == served.address
    assert only(run("clusterList", "-m"))["in_today"] >= MESSAGE_COUNT
    assert only(run("brokerStatus", "-b", served.address))["brokerVersionDesc"] == "V4_9_7"
    run("updateBrokerConfig", "-b", served.address, "-k", "fileReservedTime", "-v", "49")
    assert only(run("getBrokerConfig", "-c", CLUSTER))["fileReservedTime"] == "49"
    for name in ("cleanExpiredCQ", "deleteExpiredCommitLog", "cleanUnusedTopic"):
        assert only(run(name, "-b", served.address))["cleans"]
    assert only(run("clusterRT", "-a", "3", "-r", "1"))["sent"] == 3


def test_name_server_commands_work(run: Run, served: Broker) -> None:
    assert "listenPort" in only(run("getNamesrvConfig"))
    run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert only(run("getNamesrvConfig"))["orderMessageEnable"] == "true"
    run("updateKvConfig", "-s", "IT", "-k", "a", "-v", "b")
    run("deleteKvConfig", "-s", "IT", "-k", "a")
    assert only(run("wipeWritePerm", "-b", BROKER_NAME))["topics"] > 0
    assert only(run("addWritePerm", "-b", BROKER_NAME))["topics"] > 0


def test_group_commands_work(run: Run, served: Broker, sent: list[SendResult]) -> None:
    other = f"{GROUP}-other"
    run("updateSubGroup", "-b", served.address, "-g", other, "-r", "5", "-q", "2")
    assert only(run("getConsumerConfig", "-g", other))["retry_max_times"] == 5
    run("deleteSubGroup", "-b", served.address, "-g", other, "-r", "true")
    assert invoke(served, "getConsumerConfig", "-g", other).exit_code == 1
    found = only(run("consumerConnection", "-g", GROUP))
    assert only(found["members"])["language"] == "PYTHON"
    assert found["subscriptions"][TOPIC] == "*"
    assert only(run("producerConnection", "-g", f"{GROUP}-producers", "-t", TOPIC))["client"]
    assert any(
        row["group"] == f"{GROUP}-producers" for row in run("producer", "-b", served.address)
    )
    assert sum(row["consumer_offset"] for row in progress(run)) >= MESSAGE_COUNT
    assert any(row["group"] == GROUP for row in run("consumerProgress"))
    assert any(row["group"] == GROUP for row in run("brokerConsumeStats", "-b", served.address))
    assert run("startMonitoring", "-r", "1") == []


def test_members_report_their_state(run: Run, served: Broker, sent: list[SendResult]) -> None:
    client = only(only(run("consumerConnection", "-g", GROUP))["members"])["client"]
    assert only(run("consumerStatus", "-g", GROUP))["queues"] == 5  # its retry queue too
    assert only(run("consumerStatus", "-g", GROUP, "-i", client))["subscriptionSet"]
    rows = run("consumerProgress", "-g", GROUP, "-s", "true")
    assert {row["client"] for row in rows} == {client}
    message_id = sent[0].offset_message_id
    directly = only(run("queryMsgById", "-i", message_id, "-g", GROUP, "-d", client))
    assert directly["consume_result"] == "CR_SUCCESS"
    told = run("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "now")
    assert {row["members"] for row in told} == {"told"}


def test_message_commands_work(run: Run, served: Broker, sent: list[SendResult]) -> None:
    first = sent[0]
    found = only(run("queryMsgById", "-i", first.offset_message_id))
    assert (found["body"], found["keys"], found["tags"]) == ("0", [KEY], "A")
    assert found["tracks"] == {GROUP: "consumed"}
    assert len(run("queryMsgByKey", "-t", TOPIC, "-k", KEY)) == MESSAGE_COUNT
    by_id = only(run("queryMsgByUniqueKey", "-t", TOPIC, "-i", first.message_id))
    place = ("-b", BROKER_NAME, "-i", str(first.queue.queue_id), "-o", str(first.queue_offset))
    assert by_id["body"] == only(run("queryMsgByOffset", "-t", TOPIC, *place))["body"] == "0"
    printed = run("printMsg", "-t", TOPIC)
    assert {row["body"] for row in printed} >= {str(number) for number in range(MESSAGE_COUNT)}
    queue = ("-a", BROKER_NAME, "-i", "0")
    counted = run("printMsgByQueue", "-t", TOPIC, *queue, "-f", "true")
    assert only(counted)["tag"] == "A"
    assert len(run("consumeMessage", "-t", TOPIC, "-c", "3")) == 3
    assert only(run("sendMessage", "-t", TOPIC, "-p", "hello"))["status"] == "OK"
    for where in ((), ("-t", TOPIC)):
        found = only(run("queryMsgById", "-i", first.message_id, *where))
        assert found["offset_message_id"] == first.offset_message_id
    again = only(run("queryMsgById", "-i", first.offset_message_id, "-s", "true"))
    assert again["before"] == first.offset_message_id
    cq = run("queryCq", "-t", TOPIC, "-q", "0", "-i", "0", "-c", "2", "-b", served.address)
    assert [row["index"] for row in cq] == [0, 1]
    assert run("queryMsgTraceById", "-i", first.message_id) == []
    assert len(run("sendMsgStatus", "-b", BROKER_NAME, "-c", "2")) == 2
    assert run("checkMsgSendRT", "-t", TOPIC, "-a", "4")[-1]["sent"] == 4


def test_offsets_of_a_missing_group_are_an_error(run: Run, sent: list[SendResult]) -> None:
    other = f"{GROUP}-offline"
    run("cloneGroupOffset", "-s", GROUP, "-d", other, "-t", TOPIC, "-o", "true")
    reset = run("resetOffsetByTime", "-g", other, "-t", TOPIC, "-s", "0")
    assert {row["members"] for row in reset} == {"offline"}
    assert sum(row["offset"] for row in reset) == 0
    skipped = run("skipAccumulatedMessage", "-g", other, "-t", TOPIC)
    assert sum(row["offset"] for row in skipped) >= MESSAGE_COUNT


def test_the_age_of_a_queues_messages_is_shown(run: Run, sent: list[SendResult]) -> None:
    rows = run("queues", "-t", TOPIC, "--time", "-g", GROUP)
    assert len(rows) == 4
    assert all(0 < row["first_stored_ms"] <= row["last_stored_ms"] for row in rows)
    assert {row["group_offset_kept"] for row in rows} == {True}


def test_figures_of_our_brokers_only_are_shown(
    run: Run, served: Broker, sent: list[SendResult]
) -> None:
    if isinstance(served, OurBroker):
        joined = run("rebalances", GROUP)
        assert joined[0]["what"] == "joined"
        assert run("transactions", "-b", served.address) == []
    else:
        done = invoke(served, "transactions", "-b", served.address)
        assert done.exit_code == 1 and "REQUEST_CODE_NOT_SUPPORTED" in done.stderr


def test_an_export_can_be_imported(
    run: Run, served: Broker, sent: list[SendResult], tmp_path: Path
) -> None:
    for name in ("exportMetadata", "exportConfigs", "exportMetrics"):
        path = Path(only(run(name, "-c", CLUSTER, "-f", str(tmp_path)))["file"])
        assert json.loads(path.read_text())
    path = tmp_path / "all.json"
    run("export", "-c", CLUSTER, "-f", str(path))
    kept = only(json.loads(path.read_text())["brokers"])
    assert TOPIC in {each["topicName"] for each in kept["topics"]}
    unchanged = only(run("import", "-c", CLUSTER, "-f", str(path), "-d"))
    assert unchanged["topics"] == unchanged["groups"] == []


def test_errors_are_one_sentence(served: Broker) -> None:
    done = invoke(served, "topicRoute", "-t", "IT-nowhere", "--json")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr == "troupemq: no name server knows the topic IT-nowhere\n"


def test_every_command_of_the_original_exists() -> None:
    text = (Path(__file__).parent / "mqadmin-commands.txt").read_text()
    assert set(text.split()) <= set(COMMANDS)
