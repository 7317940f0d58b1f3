"""The console at official clusters: `troupemq console -n` and /api at a master and its slave.

Every page answers, what it says is what mqadmin says, what it changes mqadmin sees, and what only
our brokers know is said to be missing.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from protocol.properties import RETRY_TOPIC
from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.console_visit import Visit, as_text, failures_in, visiting
from tests.compat.exporter_values import COUNT, GROUP, LATE, QUEUES, TOPIC, Life, lived_in
from tests.compat.patience import wait_until
from tests.compat.servers import BROKER_NAME, CLUSTER, Broker
from tests.compat.test_administration import FIGURE, SETTING
from tests.compat.test_mqadmin import lines_of
from tests.compat.toolchain import Java
from troupemq import Message, Producer, SendResult
from troupemq.client.admin import Admin
from troupemq.console.app import ALL_OF_THEM
from troupemq.console.asking import PLACES

assert ALL_OF_THEM, "which register the pages"

MSG_ID = re.compile(r"MSGID: (\S+)")


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
        ThreadPoolExecutor() as pool,
    ):
        master = make_broker("official", folder / "master", names, traceTopicEnable="true")
        slave = make_broker("official", folder / "slave", names, **roles)
        try:
            list(pool.map(Broker.start, (master, slave)))
            yield master, slave
        finally:
            list(pool.map(Broker.stop, (master, slave)))


@pytest.fixture(scope="module")
def official_life(official_pair: tuple[Broker, Broker]) -> Iterator[Life]:
    with lived_in(official_pair[0]) as life:
        yield life


@pytest.fixture(scope="module")
def official_run(java_tools: Java, official_pair: tuple[Broker, Broker]) -> Iterator[Shell]:
    """The official mqadmin at the master."""
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


def test_every_page_answers_and_marks_what_official_brokers_lack(
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
        "/message/life": place_of(official_life.results[0]),
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
        assert "not supported" not in page.text and "Partial data" not in page.text, path
        found[path] = page.text
        if program.status_code == 200 and (missing := failures_in(program.json())):
            failures[path] = missing
    assert failures == {}
    for path, sentence in (
        ("/group", "RocketMQ brokers do not record them"),
        ("/transactions", "RocketMQ brokers do not"),
        ("/jobs", "No broker here has a job schedule"),
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


def test_queues_and_lags_equal_those_of_mqadmin(visit: Visit, official_run: Shell) -> None:
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


def test_a_message_is_found_by_id_key_and_time_as_by_mqadmin(
    visit: Visit, official_run: Shell, official_life: Life
) -> None:
    wanted = official_life.results[3]
    printed = lines_of(official_run("queryMsgById", "-i", wanted.offset_message_id))
    for query in ({"id": wanted.message_id}, {"id": wanted.offset_message_id}):
        (row,) = visit.json("/messages", topic=TOPIC, **query)["messages"]
        assert row["message"] == wanted.message_id
        assert str(row["queue_offset"]) == printed["Queue Offset"]
    states = {GROUP: "consumed", LATE: "no member connected"}

    def states_shown() -> dict[str, str]:
        shown = visit.json("/message", **place_of(wanted))["consumers"]
        return {row["group"]: row["state"] for row in shown}

    wait_until(lambda: states_shown() == states, f"what its groups did: {states_shown()}", 20.0)
    page = visit.json("/message", **place_of(wanted))
    fields = page["message"]
    assert (fields["topic"], f"[{fields['keys']}]") == (printed["Topic"], printed["Keys"])
    assert f"[{fields['tags']}]" == printed["Tags"]
    assert fields["queue"] == f"{BROKER_NAME}:{printed['Queue ID']}"
    assert fields["born_host"] in printed["Born Host"]
    assert page["body"] == "x" * 103
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


def test_a_search_reads_what_official_brokers_have_in_steps(visit: Visit) -> None:
    every = visit.json("/messages", topic=TOPIC, count=500)["messages"]
    times = [each["stored_ms"] for each in every]
    assert len(every) == COUNT and times == sorted(times, reverse=True)
    middle = times[COUNT // 2]
    for query, wanted in (
        ({"text": "xxx"}, times),
        ({"text": "nowhere"}, []),
        (
            {"tag": every[0]["tags"]},
            [r["stored_ms"] for r in every if r["tags"] == every[0]["tags"]],
        ),
        ({"end": middle}, [each for each in times if each <= middle]),
        ({"having": f"UNIQ_KEY={every[3]['message']}"}, [times[3]]),
        ({"begin": middle, "end": middle}, [each for each in times if each == middle]),
    ):
        found = visit.json("/messages", topic=TOPIC, count=500, **query)
        shown = [each["stored_ms"] for each in found["messages"]]
        assert sorted(shown) == sorted(wanted) and found["progress"]["state"] == "over", query
    tail = visit.json("/tail", topic=TOPIC)
    assert len(tail["messages"]) == min(20, COUNT) and tail["progress"]["new"] == 0
    given = {"topic": TOPIC, "body": "fresh", "tag": "", "key": "fresh-key"}
    visit.change("send", is_meant=True, **given)
    tail = visit.json("/tail", topic=TOPIC, go="next")
    assert tail["messages"][0]["keys"] == "fresh-key" and tail["progress"]["new"] == 1
    rows = visit.json("/topic", name=TOPIC)["at_brokers"]
    assert [row["permission"] for row in rows] == ["read and write"]


def test_dead_letters_are_redriven_and_discarded_at_official_brokers(
    visit: Visit, official_pair: tuple[Broker, Broker]
) -> None:
    namesrv, group = official_pair[0].name_server.address, f"{GROUP}-dead"
    topic = f"%DLQ%{group}"
    with Admin(namesrv) as admin, Producer("letters", namesrv) as producer:
        admin.create_topic(topic, 1)
        wait_until(lambda: len(admin.queues(topic)) == 1, "the topic", 40.0)
        own = {RETRY_TOPIC: TOPIC}
        letters = [Message(topic, b"dead", system_properties=own) for _ in range(4)]
        ids = [producer.send(each).offset_message_id for each in letters]
        wait_until(lambda: admin.message_count(topic) == 4, "all of them")
        given = {"group": group, "ids": ",".join(ids[:2])}
        done = visit.change("redrive-some", is_meant=True, **given)
        assert f"2 dead letters of {group} were sent" in done["sentences"][0]
        plan = visit.change("discard", is_meant=False, **{**given, "ids": ids[2]})
        assert [row["discarded"] for row in plan["queues"]] == [3]
        visit.change("discard", is_meant=True, **{**given, "ids": ids[2]})
        found = visit.json("/dead-letters/group", name=group)
        assert [row["state"] for row in found["letters"]].count("waiting") == 1
        (queue,) = admin.queues(topic)
        assert admin.stored_offset(f"REDRIVE_{group}", queue) == 3


def test_a_created_topic_is_visible_to_mqadmin(visit: Visit, official_run: Shell) -> None:
    topic = f"{TOPIC}-made"
    given = {"cluster": CLUSTER, "topic": topic, "permission": "6"}
    given |= {"read_queues": "3", "write_queues": "2"}
    preview = visit.change("topic", is_meant=False, **given)
    assert f"updateTopic -c {CLUSTER} -t {topic} -r 3 -w 2 -p 6" in preview["line"]
    assert "CODE: 17" in official_run("topicRoute", "-t", topic)
    visit.change("topic", is_meant=True, **given)
    wait_until(lambda: '"readQueueNums":3' in official_run("topicRoute", "-t", topic), "a route")
    assert '"writeQueueNums":2' in official_run("topicRoute", "-t", topic)


def test_a_reset_does_what_its_preview_says(visit: Visit, official_run: Shell) -> None:
    def offsets() -> dict[int, int]:
        rows = (line.split() for line in official_run("consumerProgress", "-g", LATE).splitlines())
        return {int(row[2]): int(row[4]) for row in rows if row[:2] == [TOPIC, BROKER_NAME]}

    wait_until(lambda: list(offsets().values()) == [1] * QUEUES, "the offsets of before", 20.0)
    given = {"group": LATE, "topic": TOPIC, "time": "0", "forward": "true"}
    preview = visit.change("reset-offset", is_meant=False, **given)
    assert [row["again"] for row in preview["queues"]] == [1] * QUEUES
    visit.change("reset-offset", is_meant=True, **given)
    wanted = {row["queue_id"]: row["offset_then"] for row in preview["queues"]}
    wait_until(lambda: offsets() == wanted, "the offsets of the preview")
