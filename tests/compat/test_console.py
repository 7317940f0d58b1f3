"""`troupemq console -n` and /api at an official 4.9.7 cluster, a master and a slave.

Every page answers; what it says is what mqadmin says, what it changes mqadmin sees; and what only
our brokers know is said to be missing.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Client, Response

from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.child import Child
from tests.compat.inhabited import MESSAGE_COUNT, QUEUE_COUNT, Inhabited, inhabited
from tests.compat.patience import wait_until
from tests.compat.servers import BROKER_NAME, CLUSTER, Broker
from tests.compat.test_administration import FIGURE
from tests.compat.test_mqadmin import lines_of
from tests.compat.toolchain import Java
from troupemq import Admin, PullConsumer, SendResult
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.console.accounts import Accounts
from troupemq.console.app import ALL_OF_THEM
from troupemq.console.asking import PLACES

assert ALL_OF_THEM, "which register the pages"

TOPIC, GROUP, LATE, KEY = "IT-console", "IT-console-group", "IT-console-late", "order-7"
MSG_ID = re.compile(r"MSGID: (\S+)")


@dataclass
class Visit:
    """A program with a token, and a browser that has logged in."""

    program: Client
    browser: Client

    def json(self, path: str, **query: object) -> Any:
        """What a page says; again for a while if brokers were too slow for its deadline."""
        found: list[Any] = []

        def is_whole() -> bool:
            answer = self.program.get(f"/api{path}", params=as_text(query))
            assert answer.status_code == 200, f"{path}: {answer.text}"
            found.append(answer.json())
            return not failures_in(found[-1])

        try:
            wait_until(is_whole, f"all of {path}")
        except AssertionError:
            pytest.fail(f"{path}: {failures_in(found[-1])}")
        return found[-1]

    def page(self, path: str, **query: object) -> Response:
        return self.browser.get(path, params=as_text(query))

    def change(self, name: str, *, is_meant: bool, **given: str) -> Any:
        body = json.dumps({"given": given, "do": is_meant})
        answer = self.program.post(f"/api/change/{name}", content=body)
        assert answer.status_code == 200 and answer.json()["failures"] == [], answer.text
        return answer.json()


def failures_in(page: Any) -> list[Any]:
    """What a page says that it has not got."""
    names = [key for key in page if key == "missing" or key.endswith("failures")]
    return [page[key] for key in names if page[key]]


def as_text(query: dict[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in query.items()}


@pytest.fixture(scope="module")
def run(java_tools: Java, official_pair: tuple[Broker, Broker]) -> Iterator[Shell]:
    master, _ = official_pair
    with admin_shell(java_tools, master.scratch, master.name_server.address) as shell:
        yield shell


@pytest.fixture(scope="module")
def traffic(official_pair: tuple[Broker, Broker]) -> Iterator[Inhabited]:
    """Messages; a group that has consumed them and stays, and one that is late."""
    master, _ = official_pair
    namesrv = master.name_server.address
    with Admin(namesrv) as admin:
        admin.create_topic(TOPIC, QUEUE_COUNT)
    with inhabited(master, TOPIC, GROUP, KEY) as found:
        first = ConsumeFrom.FIRST_OFFSET
        with PullConsumer(LATE, namesrv, auto_commit=False, begin=first) as late:
            late.commit(dict.fromkeys(late.fetch_queues(TOPIC), 1))
        yield found


@pytest.fixture(scope="module")
def visit(
    official_pair: tuple[Broker, Broker],
    traffic: Inhabited,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Visit]:
    scratch: Path = tmp_path_factory.mktemp("console")
    accounts = Accounts(scratch / "data" / "accounts.json")
    headers = {"Authorization": f"Bearer {accounts.new_token('interop', 'admin')}"}
    ready = scratch / "ready"
    namesrv = official_pair[0].name_server.address
    command = [sys.executable, "-m", "troupemq", "console", "-n", namesrv, "-p", "0"]
    files = ["--data", str(scratch / "data"), "--ready-file", str(ready)]
    with Child([*command, *files], scratch / "log"):
        wait_until(lambda: ready.exists() and bool(ready.read_text().strip()), "the console serves")
        at = f"http://127.0.0.1:{json.loads(ready.read_text())['console']}"
        with (
            Client(base_url=at, headers=headers, timeout=60) as program,
            Client(base_url=at, timeout=60) as browser,
        ):
            form = {"name": "admin", "password": accounts.first_password or "", "next": "/"}
            assert browser.post("/login", data=form).status_code == 303
            yield Visit(program, browser)


def place_of(result: SendResult) -> dict[str, object]:
    queue = result.queue
    return {
        "topic": TOPIC,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "offset": result.queue_offset,
    }


def test_every_page_answers_and_says_what_official_brokers_do_not_know(
    visit: Visit, traffic: Inhabited, official_pair: tuple[Broker, Broker]
) -> None:
    queries: dict[str, dict[str, object]] = {
        "/broker": {"address": official_pair[0].address},
        "/topic": {"name": TOPIC},
        "/topics": {"filter": TOPIC},
        "/group": {"name": GROUP},
        "/client": {"group": GROUP, "client": traffic.consumer},
        "/producers": {"topic": TOPIC, "group": f"{GROUP}-producers"},
        "/messages": {"topic": TOPIC},
        "/tail": {"topic": TOPIC},
        "/trace": {"id": traffic.results[0].message_id},
        "/message": place_of(traffic.results[0]),
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
    failures.pop("/dead-letters/group", None)  # it has none: nobody knows a topic of them
    assert failures == {}
    for path, sentence in (
        ("/group", "official brokers do not remember it"),
        ("/transactions", "RocketMQ&#39;s own do not"),
        ("/jobs", "No broker here runs jobs by itself"),
    ):
        assert sentence in found[path], path


def test_brokers_are_those_that_mqadmin_lists(
    visit: Visit, run: Shell, official_pair: tuple[Broker, Broker]
) -> None:
    master, slave = official_pair
    listed = {tuple(row.split()[:5]) for row in run("clusterList").splitlines()[1:]}
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
    status = dict(FIGURE.findall(run("brokerStatus", "-b", master.address)))
    figures = visit.json("/broker", address=master.address)["figures"]
    same = ("brokerVersionDesc", "bootTimestamp", "putMessageTimesTotal", "commitLogMaxOffset")
    for name in (*same, "msgPutTotalTodayNow", "sendThreadPoolQueueCapacity"):
        assert figures[name] == status[name], name
    shown_settings = visit.json("/broker", address=master.address)["settings"]
    settings = dict(
        re.findall(r"^(\S+) += {2}(.*)$", run("getBrokerConfig", "-b", master.address), re.M)
    )
    assert {row["setting"]: row["value"] for row in shown_settings} == settings


def test_queues_and_lags_are_those_of_mqadmin(visit: Visit, run: Shell) -> None:
    topic = visit.json("/topic", name=TOPIC)
    shown = {(row["queue_id"], row["messages"]) for row in topic["queues"]}
    rows = [line.split() for line in run("topicStatus", "-t", TOPIC).splitlines()[1:]]
    assert shown == {(int(row[1]), int(row[3]) - int(row[2])) for row in rows}
    assert {row["group"] for row in topic["groups"]} == {GROUP, LATE}
    for group in (GROUP, LATE):
        printed = run("consumerProgress", "-g", group)
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
        assert found == told and len(told) >= QUEUE_COUNT
        total = re.search(r"Diff Total: (\d+)", printed)
        assert total and page["group"]["lag"] == int(total[1]) == (0 if group == GROUP else 4)
    assert visit.json("/group", name=LATE)["group"]["late_ms"] > 0


def test_a_message_is_found_by_id_key_and_time_as_by_mqadmin(
    visit: Visit, run: Shell, traffic: Inhabited
) -> None:
    wanted = traffic.results[3]
    printed = lines_of(run("queryMsgById", "-i", wanted.offset_message_id))
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
    assert page["body"] == "3" and {row["group"]: row["state"] for row in page["consumers"]} == {
        GROUP: "consumed",
        LATE: "no member is there",
    }
    rows = [line.split() for line in run("queryMsgByKey", "-t", TOPIC, "-k", KEY).splitlines()[1:]]
    by_key = visit.json("/messages", topic=TOPIC, key=KEY)["messages"]
    assert {each["message"] for each in by_key} == {row[0] for row in rows}
    assert len(rows) == MESSAGE_COUNT
    begin = sorted(each["stored_ms"] for each in by_key)[MESSAGE_COUNT // 2]
    told = run("printMsg", "-t", TOPIC, "-b", str(begin))
    shown = visit.json("/messages", topic=TOPIC, begin=begin)["messages"]
    between = {each["message"] for each in by_key if each["stored_ms"] >= begin}
    assert {each["message"] for each in shown} == between
    assert between <= set(MSG_ID.findall(told)), "mqadmin begins a queue with the one before"


def test_a_topic_is_made_as_mqadmin_sees_it(visit: Visit, run: Shell) -> None:
    topic = f"{TOPIC}-made"
    given = {"cluster": CLUSTER, "topic": topic, "permission": "6"}
    given |= {"read_queues": "3", "write_queues": "2"}
    preview = visit.change("topic", is_meant=False, **given)
    assert f"updateTopic -c {CLUSTER} -t {topic} -r 3 -w 2 -p 6" in preview["line"]
    assert "CODE: 17" in run("topicRoute", "-t", topic)
    visit.change("topic", is_meant=True, **given)
    wait_until(lambda: '"readQueueNums":3' in run("topicRoute", "-t", topic), "a route")
    assert '"writeQueueNums":2' in run("topicRoute", "-t", topic)


def test_a_reset_does_what_its_preview_says(visit: Visit, run: Shell) -> None:
    given = {"group": LATE, "topic": TOPIC, "time": "0", "forward": "true"}
    preview = visit.change("reset-offset", is_meant=False, **given)
    assert [row["again"] for row in preview["queues"]] == [1] * QUEUE_COUNT

    def offsets() -> dict[int, int]:
        rows = (line.split() for line in run("consumerProgress", "-g", LATE).splitlines())
        return {int(row[2]): int(row[4]) for row in rows if row[:2] == [TOPIC, BROKER_NAME]}

    assert set(offsets().values()) == {1}
    visit.change("reset-offset", is_meant=True, **given)
    wanted = {row["queue_id"]: row["offset_then"] for row in preview["queues"]}
    wait_until(lambda: offsets() == wanted, "the offsets of the preview")
