"""What operators see: metrics beside official tools and brokers, the console at official clusters.

The exporter's names are compared with the requests that it makes for them, at our broker and at an
official one with the same life; what time alone moves, at ours. `troupemq console -n` and /api are
asked at an official master and slave: every page answers, what it says is what mqadmin says, what
it changes mqadmin sees, and what only our brokers know is said to be missing.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from actors.metrics.exporter_page import PLAIN, PUT_CLASSES, RATES, RUNTIME, WINDOWS
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tests.actors.metrics.names import EXPORTER
from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.console_visit import Visit, as_text, failures_in, visiting
from tests.compat.exporter_values import (
    COUNT,
    GROUP,
    LATE,
    QUEUES,
    SAME_EVERYWHERE,
    TOPIC,
    Life,
    as_the_exporter_reads,
    figures_of,
    lived_in,
    scraped,
    shown_of,
)
from tests.compat.patience import wait_until
from tests.compat.servers import BROKER_NAME, CLUSTER, Broker
from tests.compat.test_administration import FIGURE, SETTING
from tests.compat.test_mqadmin import lines_of
from tests.compat.toolchain import Java
from tests.support.metrics import value
from troupemq import SendResult
from troupemq.cli.admin.session import Session
from troupemq.console.app import ALL_OF_THEM
from troupemq.console.asking import PLACES

assert ALL_OF_THEM, "which register the pages"

MSG_ID = re.compile(r"MSGID: (\S+)")
MOVING = ("pageCacheLockTimeMills", "putLatency99", "putLatency999", "dispatchBehindBytes")
"""Figures of code 28 that are another one each time."""


@pytest.fixture(scope="module")
def official_pair(
    tmp_path_factory: pytest.TempPathFactory,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> Iterator[tuple[Broker, Broker]]:
    """An official master and its slave, with an official name server."""
    folder = tmp_path_factory.mktemp("official-pair")
    roles = {"brokerRole": "SLAVE", "brokerId": "1"}
    with (
        make_name_server("official", folder / "names") as names,
        ExitStack() as stack,
        ThreadPoolExecutor() as pool,
    ):
        master = make_broker("official", folder / "master", names, traceTopicEnable="true")
        slave = make_broker("official", folder / "slave", names, **roles)
        for each in (master, slave):
            stack.callback(each.stop)
        list(pool.map(Broker.start, (master, slave)))
        yield master, slave


@pytest.fixture(scope="module")
def official_life(official_pair: tuple[Broker, Broker]) -> Iterator[Life]:
    with lived_in(official_pair[0]) as life:
        yield life


@pytest.fixture(scope="module")
def ours(
    tmp_path_factory: pytest.TempPathFactory,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> Iterator[Broker]:
    """With metrics, and with the same life."""
    folder = tmp_path_factory.mktemp("metrics")
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
    with (
        make_name_server("ours", folder / "names") as names,
        make_broker("ours", folder / "broker", names, **settings) as broker,
        lived_in(broker),
    ):
        yield broker


@pytest.fixture(scope="module")
def both(
    ours: Broker, official_pair: tuple[Broker, Broker], official_life: Life
) -> tuple[Broker, Broker]:
    """Ours and an official one."""
    return ours, official_pair[0]


@pytest.fixture(scope="module")
def run(java_tools: Java, ours: Broker) -> Iterator[Shell]:
    """The official mqadmin at our broker."""
    with admin_shell(java_tools, ours.scratch, ours.name_server.address) as shell:
        yield shell


@pytest.fixture(scope="module")
def official_run(java_tools: Java, official_pair: tuple[Broker, Broker]) -> Iterator[Shell]:
    """And at the official one."""
    master, _ = official_pair
    with admin_shell(java_tools, master.scratch, master.name_server.address) as shell:
        yield shell


@pytest.fixture(scope="module")
def visit(
    official_pair: tuple[Broker, Broker],
    official_life: Life,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Visit]:
    """To a console of the official cluster."""
    namesrv = official_pair[0].name_server.address
    with visiting(namesrv, tmp_path_factory.mktemp("console")) as made:
        yield made


def place_of(result: SendResult) -> dict[str, object]:
    queue = result.queue
    return {
        "topic": TOPIC,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "offset": result.queue_offset,
    }


@pytest.mark.whole  # what an official broker says of a group depends on the moment
def test_the_exporters_values_are_those_of_the_requests_that_it_makes(
    both: tuple[Broker, Broker],
) -> None:
    ours, official = both
    page = scraped(ours, "/metrics/exporter?collect=client")
    assert {name for name in EXPORTER if not page.get(name)} == set(), "all have values here"
    with Session(ours.name_server.address) as session:
        wanted = as_the_exporter_reads(session, ours)
    assert len(wanted) >= 10 and shown_of(page, wanted) == wanted
    with Session(official.name_server.address) as session:
        wait_until(lambda: as_the_exporter_reads(session, official) == wanted, "the same there")
    cluster = {"cluster": CLUSTER, "broker": BROKER_NAME}
    assert value(page, "rocketmq_producer_offset", topic=TOPIC, **cluster) == COUNT


def test_runtime_figures_are_those_of_an_official_broker(
    both: tuple[Broker, Broker],
) -> None:
    """Whatever the same traffic determines."""
    ours, official = both
    there, page = figures_of(official), scraped(ours, "/metrics/exporter")
    shown = {name: value(page, RUNTIME + name) for name in SAME_EVERYWHERE}
    told = {name: float(there[PLAIN[name]]) for name in SAME_EVERYWHERE}
    assert shown == told
    average = shown["put_message_size_total"] / shown["putmessage_times_total"]
    assert value(page, f"{RUNTIME}put_message_average_size") == pytest.approx(average)


def test_runtime_figures_are_those_of_broker_status(
    both: tuple[Broker, Broker], run: Shell
) -> None:
    ours, _ = both

    def differences() -> dict[str, tuple[float, str]]:
        status = dict(FIGURE.findall(run("brokerStatus", "-b", ours.address)))
        page = scraped(ours, "/metrics/exporter")
        found = {}
        for name, own in PLAIN.items():
            number = value(page, RUNTIME + name)
            if own not in MOVING and number != float(status[own]):
                found[name] = number, status[own]
        for name, own in RATES.items():
            for window, text in zip(WINDOWS, status[own].split(), strict=True):
                number = value(page, RUNTIME + name + window)
                if abs(number - float(text)) > 0.2 + 0.2 * number:
                    found[name + window] = number, text
        counts = re.findall(r"\]:(\d+)", status["putMessageDistributeTime"])
        for name, text in zip(PUT_CLASSES, counts or ["0"] * len(PUT_CLASSES), strict=True):
            if (number := value(page, RUNTIME + name)) != float(text):
                found[name] = number, text
        return found

    wait_until(lambda: differences() == {}, f"the figures of one moment: {differences()}", 20.0)


def test_offsets_lags_and_rates_are_those_of_mqadmin(
    both: tuple[Broker, Broker], run: Shell
) -> None:
    ours, _ = both
    rows = [line.split() for line in run("topicStatus", "-t", TOPIC).splitlines()[1:]]
    old, native = scraped(ours, "/metrics/exporter"), scraped(ours, "/metrics")
    assert value(old, "rocketmq_producer_offset", topic=TOPIC) == sum(int(row[3]) for row in rows)
    assert value(native, "rocketmq_messages_in_total", topic=TOPIC, message_type="normal") == COUNT
    for group, lag in ((GROUP, 0), (LATE, COUNT - QUEUES)):
        printed = run("consumerProgress", "-g", group)
        total = re.search(r"Diff Total: (\d+)", printed)
        shown = [
            number
            for labels, number in native["rocketmq_consumer_lag_messages"]
            if labels["consumer_group"] == group
        ]
        assert total and sum(shown) == int(total[1]) == lag
        assert value(old, "rocketmq_group_diff", group=group, topic=TOPIC) == lag

    def rates() -> bool:
        row = next(line for line in run("statsAll", "-t", TOPIC).splitlines() if GROUP in line)
        in_tps, out_tps = map(float, row.split()[3:5])
        page = scraped(ours, "/metrics/exporter")
        shown_in = value(page, "rocketmq_producer_tps", topic=TOPIC)
        shown_out = value(page, "rocketmq_consumer_tps", topic=TOPIC, group=GROUP)
        return abs(shown_in - in_tps) < 0.01 and abs(shown_out - out_tps) < 0.01

    wait_until(rates, "the rates of one moment", 20.0)


def test_a_dead_letter_and_a_retry_are_counted_as_mqadmin_finds_them(
    both: tuple[Broker, Broker], run: Shell
) -> None:
    ours, _ = both
    native, old = scraped(ours, "/metrics"), scraped(ours, "/metrics/exporter")
    for prefix, name, labels in (
        (DLQ_TOPIC_PREFIX, "topic_dlq_offset", {"group": GROUP}),
        (RETRY_TOPIC_PREFIX, "topic_retry_offset", {"topic": RETRY_TOPIC_PREFIX + GROUP}),
    ):
        rows = run("topicStatus", "-t", prefix + GROUP).splitlines()[1:]
        ends = sum(int(line.split()[3]) for line in rows)
        assert value(old, f"rocketmq_{name}", **labels) == ends == 1
    dead = "rocketmq_send_to_dlq_messages_total"
    assert value(native, dead, consumer_group=GROUP, topic=TOPIC) == 1


def test_every_page_answers_and_says_what_official_brokers_do_not_know(
    visit: Visit, official_life: Life, official_pair: tuple[Broker, Broker]
) -> None:
    queries: dict[str, dict[str, object]] = {
        "/broker": {"address": official_pair[0].address},
        "/topic": {"name": TOPIC},
        "/topics": {"filter": TOPIC},
        "/group": {"name": GROUP},
        "/group/members": {"name": GROUP},
        "/jobs/history": {"job": "traffic"},
        "/client": {"group": GROUP, "client": official_life.consumer},
        "/producers": {"topic": TOPIC, "group": f"{GROUP}-producers"},
        "/messages": {"topic": TOPIC},
        "/tail": {"topic": TOPIC},
        "/trace": {"id": official_life.results[0].message_id},
        "/message": place_of(official_life.results[0]),
        "/dead-letters/group": {"name": GROUP},
        "/job": {"broker": official_pair[0].address, "run": "none"},
    }
    found, failures = {}, {}
    for path in sorted(PLACES, key="/access".__eq__):  # who is silent is not asked for a while
        query = queries.get(path, {})
        page = visit.page(path, **query)
        program = visit.program.get(f"/api{path}", params=as_text(query))
        wanted = {404, 502} if path == "/job" else {200}
        assert {page.status_code, program.status_code} <= wanted, f"{path}: {page.text}"
        assert "not supported" not in page.text and "Not all have answered" not in page.text, path
        found[path] = page.text
        if program.status_code == 200 and (missing := failures_in(program.json())):
            failures[path] = missing
    assert failures == {}
    for path, sentence in (
        ("/group", "official brokers do not remember it"),
        ("/transactions", "RocketMQ&#39;s own do not"),
        ("/jobs", "No broker here runs jobs by itself"),
    ):
        assert sentence in found[path], path


def test_brokers_are_those_that_mqadmin_lists(
    visit: Visit, official_run: Shell, official_pair: tuple[Broker, Broker]
) -> None:
    master, slave = official_pair
    listed = {tuple(row.split()[:5]) for row in official_run("clusterList").splitlines()[1:]}
    shown = {
        (
            each["cluster"],
            each["broker"],
            "0" if each["role"] == "master" else each["role"].removeprefix("slave "),
            each["address"],
            each["version"],
        )
        for each in visit.json("/brokers")["brokers"]
    }
    assert shown == listed and len(shown) == 2
    assert {each[3] for each in shown} == {master.address, slave.address}
    status = dict(FIGURE.findall(official_run("brokerStatus", "-b", master.address)))
    figures = visit.json("/broker", address=master.address)["figures"]
    same = ("brokerVersionDesc", "bootTimestamp", "putMessageTimesTotal", "commitLogMaxOffset")
    for name in (*same, "msgPutTotalTodayNow", "sendThreadPoolQueueCapacity"):
        assert figures[name] == status[name], name
    shown_settings = visit.json("/broker", address=master.address)["settings"]
    settings = dict(SETTING.findall(official_run("getBrokerConfig", "-b", master.address)))
    assert {row["setting"]: row["value"] for row in shown_settings} == settings


def test_queues_and_lags_are_those_of_mqadmin(visit: Visit, official_run: Shell) -> None:
    topic = visit.json("/topic", name=TOPIC)
    shown = {(row["queue_id"], row["messages"]) for row in topic["queues"]}
    rows = [line.split() for line in official_run("topicStatus", "-t", TOPIC).splitlines()[1:]]
    assert shown == {(int(row[1]), int(row[3]) - int(row[2])) for row in rows}
    assert {row["group"] for row in topic["groups"]} == {GROUP, LATE}
    for group, lag in ((GROUP, 0), (LATE, COUNT - QUEUES)):
        printed = official_run("consumerProgress", "-g", group)
        told = {
            (row[0], int(row[2]), int(row[3]), int(row[4]), int(row[5]))
            for row in (line.split() for line in printed.splitlines())
            if len(row) > 5 and row[1] == BROKER_NAME
        }
        page = visit.json("/group", name=group)
        found = {
            (
                row["topic"],
                row["queue_id"],
                row["broker_offset"],
                row["consumer_offset"],
                row["lag"],
            )
            for row in page["queues"]
        }
        assert found == told and len(told) >= QUEUES
        total = re.search(r"Diff Total: (\d+)", printed)
        assert total and page["group"]["lag"] == int(total[1]) == lag
    assert visit.json("/group", name=LATE)["group"]["late_ms"] > 0


@pytest.mark.whole  # what an official broker says of a group depends on the moment
def test_a_message_is_found_by_id_key_and_time_as_by_mqadmin(
    visit: Visit, official_run: Shell, official_life: Life
) -> None:
    wanted = official_life.results[3]
    printed = lines_of(official_run("queryMsgById", "-i", wanted.offset_message_id))
    for query in ({"id": wanted.message_id}, {"id": wanted.offset_message_id}):
        (row,) = visit.json("/messages", topic=TOPIC, **query)["messages"]
        assert row["message"] == wanted.message_id
        assert str(row["queue_offset"]) == printed["Queue Offset"]
    page = visit.json("/message", **place_of(wanted))
    fields = page["message"]
    assert (fields["topic"], f"[{fields['keys']}]") == (printed["Topic"], printed["Keys"])
    assert f"[{fields['tags']}]" == printed["Tags"]
    assert fields["queue"] == f"{BROKER_NAME}:{printed['Queue ID']}"
    assert fields["born_host"] in printed["Born Host"]
    assert page["body"] == "x" * 103
    states = {row["group"]: row["state"] for row in page["consumers"]}
    assert states == {GROUP: "consumed", LATE: "no member is there"}
    (row,) = official_run("queryMsgByKey", "-t", TOPIC, "-k", "key-03").splitlines()[1:]
    (by_key,) = visit.json("/messages", topic=TOPIC, key="key-03")["messages"]
    assert by_key["message"] == row.split()[0] == wanted.message_id
    all_of_it = visit.json("/messages", topic=TOPIC)["messages"]
    begin = sorted(each["stored_ms"] for each in all_of_it)[COUNT // 2]
    told = official_run("printMsg", "-t", TOPIC, "-b", str(begin))
    shown = visit.json("/messages", topic=TOPIC, begin=begin)["messages"]
    between = {each["message"] for each in all_of_it if each["stored_ms"] >= begin}
    assert {each["message"] for each in shown} == between
    assert between <= set(MSG_ID.findall(told)), "mqadmin begins a queue with the one before"


def test_a_topic_is_made_as_mqadmin_sees_it(visit: Visit, official_run: Shell) -> None:
    topic = f"{TOPIC}-made"
    given = {"cluster": CLUSTER, "topic": topic, "permission": "6"}
    given |= {"read_queues": "3", "write_queues": "2"}
    preview = visit.change("topic", is_meant=False, **given)
    assert f"updateTopic -c {CLUSTER} -t {topic} -r 3 -w 2 -p 6" in preview["line"]
    assert "CODE: 17" in official_run("topicRoute", "-t", topic)
    visit.change("topic", is_meant=True, **given)
    wait_until(lambda: '"readQueueNums":3' in official_run("topicRoute", "-t", topic), "a route")
    assert '"writeQueueNums":2' in official_run("topicRoute", "-t", topic)


@pytest.mark.whole  # what an official broker says of a group depends on the moment
def test_a_reset_does_what_its_preview_says(visit: Visit, official_run: Shell) -> None:
    given = {"group": LATE, "topic": TOPIC, "time": "0", "forward": "true"}
    preview = visit.change("reset-offset", is_meant=False, **given)
    assert [row["again"] for row in preview["queues"]] == [1] * QUEUES

    def offsets() -> dict[int, int]:
        rows = (line.split() for line in official_run("consumerProgress", "-g", LATE).splitlines())
        return {int(row[2]): int(row[4]) for row in rows if row[:2] == [TOPIC, BROKER_NAME]}

    assert set(offsets().values()) == {1}
    visit.change("reset-offset", is_meant=True, **given)
    wanted = {row["queue_id"]: row["offset_then"] for row in preview["queues"]}
    wait_until(lambda: offsets() == wanted, "the offsets of the preview")
