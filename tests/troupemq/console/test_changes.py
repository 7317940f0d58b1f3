"""Changes are previewed, equal their command line, and appear in the audit log."""

import json
import shlex
from html import unescape
from random import Random
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from protocol.topic_names import DLQ_TOPIC_PREFIX, SCHEDULE_TOPIC
from storage.errors import StoreError
from tests.compat.patience import wait_until
from tests.troupemq.console.conftest import Visit, place_of
from troupemq import Message, Producer, PullConsumer
from troupemq.cli import cli
from troupemq.client.admin import Admin
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.console.asking import PageRequest
from troupemq.console.changes import CHANGES
from troupemq.console.pages import waiting
from troupemq.servers import Servers

MADE = {
    "cluster": "DefaultCluster",
    "topic": "Made",
    "read_queues": "3",
    "write_queues": "3",
    "permission": "6",
}

QUEUE_OF_AN_HOUR = 16


@pytest.fixture
def namesrv(servers: Servers) -> str:
    return f"127.0.0.1:{servers.ports['namesrv']}"


def queue_count(namesrv: str, topic: str) -> int:
    with Admin(namesrv) as admin:
        return len(admin.queues(topic))


def test_a_preview_changes_nothing_and_shows_the_command_line(live: Visit, namesrv: str) -> None:
    page = live.preview("topic", **{**MADE, "topic": "NotMade"})
    line = "troupemq admin updateTopic -c DefaultCluster -t NotMade -r 3 -w 3 -p 6 -n " + namesrv
    assert line in page.text and "The topic is new" in page.text
    assert "NotMade" not in live.console.watch.newest().topics
    live.console.watch.forget()
    assert "NotMade" not in live.console.watch.newest().topics
    assert [each["what"] for each in live.console.audit.newest(9)] == ["login"]


def test_a_change_is_executed_audited_and_confirmed(live: Visit, namesrv: str) -> None:
    page = live.change("topic", **MADE)
    assert "Made has 3 queues to read and 3 to write" in page.text
    assert queue_count(namesrv, "Made") == 3
    assert live.json("/topics", filter="Made")["topics"][0]["read_queues"] == 3
    done, begun, _ = live.console.audit.newest(9)
    assert (begun["result"], done["result"]) == ("begun", "done")
    assert done["who"] == "visitor" and done["address"] == "testclient"
    assert done["given"] == MADE
    live.change("topic-permission", cluster="DefaultCluster", topic="Made", permission="4")
    assert live.json("/topic", name="Made")["topic"]["may"] == "read"
    assert live.console.audit.newest(2)[1]["before"]["permission"] == 6  # type: ignore[index]
    loss = live.preview("delete-topic", cluster="DefaultCluster", topic="Made").text
    assert "0 messages are deleted" in loss
    live.change("delete-topic", cluster="DefaultCluster", topic="Made")
    assert live.get("/topic", name="Made").status_code == 404


def test_the_command_line_of_a_change_has_the_same_effect(live: Visit, namesrv: str) -> None:
    given = {**MADE, "topic": "ByLine"}
    shown = CHANGES["topic"].line(_asked(live), given)
    program, *words = shlex.split(shown)
    assert program == "troupemq"
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert queue_count(namesrv, "ByLine") == 3


def _asked(visit: Visit) -> PageRequest:
    viewer = visit.console.accounts.viewer_of("visitor")
    assert viewer is not None
    return PageRequest(visit.console, viewer, {})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({**MADE, "topic": ""}, "Topic is missing."),
        ({**MADE, "cluster": "Elsewhere"}, "Cluster is invalid: use one of DefaultCluster."),
        ({**MADE, "read_queues": "many"}, "is not a valid integer"),
        ({**MADE, "topic": "a b"}, "illegal characters"),
        ({**MADE, "topic": "--help"}, "--help has 3 queues"),
        ({**MADE, "topic": "<script>alert(1)</script>"}, "illegal characters"),
    ],
)
def test_invalid_values_are_refused_with_one_sentence(
    live: Visit, given: dict[str, str], sentence: str
) -> None:
    """No value of a form becomes an option of the command."""
    page = live.change("topic", **given)
    assert sentence in page.text and "<script>alert" not in page.text


def test_a_reset_is_previewed_by_queue_and_executed(live: Visit, namesrv: str) -> None:
    with Producer("shop", namesrv) as producer:
        for number in range(6):
            producer.send(Message("Orders", b"%d" % number))
    with PullConsumer(
        "reader", namesrv, auto_commit=False, begin=ConsumeFrom.FIRST_OFFSET
    ) as reader:
        queues = reader.fetch_queues("Orders")
        with Admin(namesrv) as admin:
            reader.commit({queue: admin.offsets(queue)[1] for queue in queues})
    wait_until(lambda: _lag(live) == 0, "the offsets to be committed")
    given = {"group": "reader", "topic": "Orders", "time": "2020-01-01T00:00", "forward": "true"}
    preview = live.preview("reset-offset", **given).text
    count = _messages(namesrv)
    assert f"{count} messages are consumed again" in preview
    assert "0 messages are never consumed" in preview
    assert _lag(live) == 0
    live.change("reset-offset", **given)
    wait_until(lambda: _lag(live) == count, "the group to be reset")
    assert (
        f"{count} messages are never consumed"
        in live.preview("skip", group="reader", topic="Orders").text
    )
    live.change("skip", group="reader", topic="Orders")
    wait_until(lambda: _lag(live) == 0, "what waits to be skipped")


def _messages(namesrv: str) -> int:
    with Admin(namesrv) as admin:
        return admin.message_count("Orders")


def _lag(visit: Visit) -> int:
    found = visit.console.cluster.ask(lambda admin: admin.group_progress("reader")).found
    return sum(each.lag for each in found) if found else -1


def test_dead_letters_are_shown_and_sent_back_once(
    live: Visit, namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = DLQ_TOPIC_PREFIX + "failing"
    live.change("topic", **{**MADE, "topic": "Back"})
    with Admin(namesrv) as admin:
        admin.create_topic(topic, 1)
    dead = {"RETRY_TOPIC": "Back", "TROUPE_FAILURE": "OSError: no route"}
    with Producer("shop", namesrv) as producer:
        wait_until(lambda: queue_count(namesrv, topic) == 1, "the topic")
        results = [producer.send(_dead_letter(topic, number, dead)) for number in range(3)]
    live.console.watch.forget()
    (group,) = live.json("/dead-letters")["groups"]
    assert (group["group"], group["dead_letters"]) == ("failing", 3)
    letters = live.json("/dead-letters/group", name="failing")["letters"]
    assert [each["from_topic"] for each in letters] == ["Back"] * 3
    assert {each["failure"] for each in letters} == {"OSError: no route"}
    exported = live.get("/dead-letters/export", name="failing")
    assert exported.headers["content-disposition"].startswith("attachment")
    lines = [json.loads(line) for line in exported.text.splitlines()]
    assert {line["body"] for line in lines} == {"0", "1", "2"}
    assert {line["from_topic"] for line in lines} == {"Back"}
    assert {line["failure"] for line in lines} == {"OSError: no route"}
    with monkeypatch.context() as fewer:
        fewer.setattr(waiting, "EXPORTED_BYTES_MAX", 100)
        refused = live.get("/dead-letters/export", name="failing")
    assert refused.status_code == 400 and "choose a time range" in refused.text
    one = {"group": "failing", "id": results[0].offset_message_id}
    assert "1 dead letters of failing were sent" in live.change("redrive-one", **one).text
    assert "0 dead letters" in live.change("redrive-one", **one).text
    assert "3 dead letters" not in live.change("redrive", group="failing", count="0").text
    live.change("redrive", group="failing", count="10")
    wait_until(lambda: len(live.json("/messages", topic="Back")["messages"]) == 3, "all of them")
    assert "not a dead letter" in live.change("redrive-one", **{**one, "group": "other"}).text


def test_long_dead_letters_are_shown_without_keeping_their_bodies(
    live: Visit, namesrv: str
) -> None:
    """Five hundred letters of 4 MiB each were 2 GiB of the console."""
    tracemalloc = pytest.importorskip("tracemalloc", reason="PyPy has no tracemalloc")
    topic, body = DLQ_TOPIC_PREFIX + "long", Random(0).randbytes(1 << 20)
    with Admin(namesrv) as admin:
        admin.create_topic(topic, 1)
    with Producer("shop", namesrv) as producer:
        wait_until(lambda: queue_count(namesrv, topic) == 1, "the topic")
        for _ in range(12):
            producer.send(Message(topic, body))
    tracemalloc.start()
    try:
        letters = live.json("/dead-letters/group", name="long")["letters"]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(letters) == 12 and peak_bytes < 8 << 20


@pytest.fixture
def dead(live: Visit, namesrv: str) -> list[str]:
    """Broker's ids of five dead letters of the group cursed."""
    topic = DLQ_TOPIC_PREFIX + "cursed"
    live.change("topic", **{**MADE, "topic": "Target"})
    with Admin(namesrv) as admin:
        admin.create_topic(topic, 1)
        live.console.watch.forget()
        wait_until(lambda: queue_count(namesrv, topic) == 1, "the topic")
        with Producer("shop", namesrv) as producer:
            own = {"RETRY_TOPIC": "Target", "TROUPE_FAILURE": "ValueError: no sum"}
            start = admin.message_count(topic)
            sent = [producer.send(_dead_letter(topic, number, own)) for number in range(5)]
            wait_until(lambda: admin.message_count(topic) == start + 5, "all to be indexed")
    return [each.offset_message_id for each in sent]


def test_chosen_dead_letters_are_redriven_together_with_preview_and_audit(
    live: Visit, dead: list[str]
) -> None:
    rows = live.json("/dead-letters/group", name="cursed")["letters"]
    assert {row["state"] for row in rows} == {"waiting"} and rows[0]["offset_message_id"] in dead
    page = live.get("/dead-letters/group", name="cursed").text
    assert f'<input type="checkbox" name="ids" value="{dead[0]}"' in page
    form = [("group", "cursed"), ("csrf", live.csrf), *(("ids", each) for each in dead[1:4])]
    answer = live.client.post(
        "/change/redrive-some",
        content="&".join(f"{name}={value}" for name, value in form),
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    ).text
    assert "3 dead letters are sent" in answer and answer.count("ValueError: no sum") == 3
    assert f"job redrive cursed --id {dead[1]} --id {dead[2]}" in answer
    given = {"group": "cursed", "ids": ",".join(dead[1:4])}
    assert "3 dead letters of cursed were sent" in live.change("redrive-some", **given).text
    done, begun = live.console.audit.newest(2)
    assert done["what"] == "redrive-some" and begun["before"]["ids"] == dead[1:4]  # type: ignore[index]
    assert "3 had been sent before" in live.change("redrive-some", **given).text
    none = live.preview("redrive-some", group="cursed", ids="")
    assert "Dead letters is missing" in none.text
    many = live.preview(
        "redrive-some", group="cursed", ids=",".join(f"{n:032X}" for n in range(501))
    )
    assert "choose 1 to 500" in many.text


def test_a_discard_says_what_it_takes_besides_the_chosen_ones(live: Visit, dead: list[str]) -> None:
    given = {"group": "cursed", "ids": dead[2]}
    before = live.json("/dead-letters/group", name="cursed")
    preview = live.preview("discard", **given).text
    older = sum(row["state"] == "waiting" for row in before["letters"]) - 3
    assert f"{older + 1} dead letter" in preview and "that you did not choose" in preview
    assert live.json("/dead-letters/group", name="cursed")["waiting"] == before["waiting"]
    assert "of cursed in broker-a:0 are discarded" in live.change("discard", **given).text
    states = [row["state"] for row in live.json("/dead-letters/group", name="cursed")["letters"]]
    assert states[:3] == ["waiting", "waiting", "redriven or discarded"]
    assert live.console.audit.newest(2)[1]["before"]["offsets"]  # type: ignore[index]
    assert "2 dead letters are discarded" in live.preview("discard-all", group="cursed").text
    live.change("discard-all", group="cursed")
    found = live.json("/dead-letters/group", name="cursed")
    assert found["waiting"] == []
    redrive = {"group": "REDRIVE_cursed", "topic": DLQ_TOPIC_PREFIX + "cursed"}
    assert "consumed again" in live.preview("skip", **redrive).text, "a group of offsets alone"
    live.console.accounts.new_password("visitor", "operator")
    assert live.preview("discard", **given).status_code == 403
    page = live.get("/dead-letters/group", name="cursed").text
    assert "/change/redrive-some" in page and "/change/discard" not in page
    live.console.accounts.new_password("visitor", "viewer")
    assert 'name="ids"' not in live.get("/dead-letters/group", name="cursed").text


def test_a_role_without_bodies_gets_no_export_of_dead_letters(live: Visit) -> None:
    object.__setattr__(live.console.settings, "hide_bodies", True)
    live.console.accounts.new_password("visitor", "viewer")
    assert live.get("/dead-letters/export", name="failing").status_code == 403
    live.client.cookies.clear()
    assert live.get("/api/dead-letters/export", name="failing").status_code == 401


def test_an_admin_redelivers_a_message_to_one_consumer(live: Visit) -> None:
    given = {"id": "7F00000100002A9F0000000000000000", "group": "billing", "client": "me@1"}
    line = "admin queryMsgById -i 7F00000100002A9F0000000000000000 -g billing -d me@1"
    assert line in live.preview("consume-again", **given).text
    live.console.accounts.new_password("visitor", "operator")
    assert live.preview("consume-again", **given).status_code == 403


def _dead_letter(topic: str, number: int, properties: dict[str, str]) -> Message:
    """Return a dead letter like a broker's; clients may not set this property."""
    message = Message(topic, b"%d" % number, keys=f"dead-{number}")
    object.__setattr__(message, "properties", {**message.properties, **properties})
    return message


def test_a_changed_settings_old_value_is_audited(live: Visit) -> None:
    address = live.console.watch.newest().brokers[0].place.address
    given = {"address": address, "key": "transactionCheckMax", "value": "9"}
    assert "15" in live.preview("setting", **given).text
    hours = {"address": address, "key": "fileReservedTime", "value": "50"}
    preview = live.preview("setting", **hours).text
    assert "72 (3 days)" in preview and "50 (50 hours)" in preview and "at once" in preview
    assert "transactionCheckMax is 9" in live.change("setting", **given).text
    assert live.console.audit.newest(2)[1]["before"]["value"] == "15"  # type: ignore[index]
    rows = live.json("/broker", address=address)["settings"]
    shown = {row["setting"]: (row["value"], row["holds"]) for row in rows}
    assert shown["transactionCheckMax"] == ("9", "at once")
    assert shown["brokerName"] == ("broker-a", "after a restart")
    given = {"address": address, "key": "tls.server.keyPassword", "value": "hidden-1"}
    assert "is a secret" in live.change("setting", **given).text
    assert "hidden-1" not in str(live.console.audit.newest(9))


def test_a_change_of_a_topic_is_previewed_by_broker_and_in_words(live: Visit) -> None:
    live.change("topic", **{**MADE, "topic": "Words"})
    form = live.get("/change/topic", topic="Words").text
    assert 'name="read_queues" value="3"' in form and ">read and write</option>" in form
    wanted = {**MADE, "topic": "Words", "read_queues": "2", "write_queues": "4"}
    found = live.preview("topic", **{**wanted, "permission": "4"}).text
    for each in (
        "3 → 2",
        "3 → 4",
        "read and write → read only",
        "no longer get the messages in queue 2 of broker-a",
        "send to the queues 2 to 3 of broker-a, which no consumer reads",
        "Sends to the topic at broker-a are refused",
    ):
        assert each in found, each
    same = live.preview("topic", **{**MADE, "topic": "Words"}).text
    assert "3 (unchanged)" in same and "No messages or clients are affected" in same
    given = {"cluster": "DefaultCluster", "topic": "Words", "permission": "2"}
    assert "Consumers get no messages" in live.preview("topic-permission", **given).text
    rows = live.json("/topic", name="Words")["at_brokers"]
    assert rows[0]["permission"] == "read and write" and rows[0]["broker"] == "broker-a"


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("topic-permission", {"topic": "orders", "permission": "4"}, "did you mean Orders?"),
        ("delete-topic", {"topic": "Nowhere"}, "Topic Nowhere not found at any broker"),
        ("delete-group", {"group": "nobody"}, "Group nobody not found at any broker"),
        ("skip", {"group": "nobody", "topic": "Orders"}, "Group nobody not found"),
        ("topic", {**MADE, "topic": "SCHEDULE_TOPIC_XXXX"}, "a topic of the brokers"),
        ("topic", {**MADE, "topic": "t" * 200}, "longer than"),
    ],
)
def test_an_unknown_name_is_refused_before_the_preview(
    live: Visit, name: str, given: dict[str, str], sentence: str
) -> None:
    for send in (live.preview, live.change):
        page = send(name, **{"cluster": "DefaultCluster", **given}).text
        assert sentence in page and "Equal command line" not in page
    assert [each["what"] for each in live.console.audit.newest(9)] == ["login"]


def test_an_unknown_setting_is_refused_before_the_preview(live: Visit) -> None:
    address = live.console.watch.newest().brokers[0].place.address
    given = {"address": address, "key": "filereservedtime", "value": "9"}
    assert "did you mean fileReservedTime?" in live.preview("setting", **given).text


def test_groups_are_created_and_deleted(live: Visit) -> None:
    given = {
        "cluster": "DefaultCluster",
        "group": "made",
        "enabled": "true",
        "from_first": "true",
        "broadcast": "false",
        "retries": "3",
        "retry_queues": "1",
    }
    assert "The group made is set" in live.change("group", **given).text
    form = live.get("/change/group", group="made").text
    assert 'name="retries" value="3"' in form
    assert "is deleted" in live.change("delete-group", cluster="DefaultCluster", group="made").text


def test_an_operator_sends_messages_and_changes_no_topics(live: Visit) -> None:
    live.console.accounts.new_password("visitor", "operator")
    assert live.change("send", topic="Orders", body="  hello ", key="k-1").status_code == 200
    rows = live.json("/messages", topic="Orders", key="k-1")["messages"]
    assert [row["body"] for row in rows] == ["hello"]
    again = live.change("resend", id=_offset_id(live, rows[0]["message"]))
    assert "is sent again" in again.text
    assert live.change("topic", **MADE).status_code == 403


def test_an_operator_recalls_a_timer_from_its_page_or_by_its_handle(
    live: Visit, namesrv: str
) -> None:
    with Producer("timers", namesrv) as producer:
        by_page, by_handle = (
            producer.send(Message("Orders", b"later", delay=3000)) for _ in range(2)
        )
    place = {**place_of(by_page), "topic": SCHEDULE_TOPIC, "queue": QUEUE_OF_AN_HOUR}
    live.console.accounts.new_password("visitor", "viewer")
    given = {"topic": "Orders", "handle": str(by_page.recall_handle)}
    assert "/change/recall" not in live.get("/message", **place).text
    assert live.change("recall", **given).status_code == 403
    live.console.accounts.new_password("visitor", "operator")
    page = live.get("/message", **place)
    assert f"/change/recall?{urlencode(given)}" in unescape(page.text)
    preview = unescape(live.preview("recall", **given).text)
    assert f"troupemq admin recallMessage -t Orders -i {given['handle']}" in preview.replace(
        "'", ""
    )
    assert f"Message {by_page.message_id} of" in preview and "No group of Orders gets it" in preview
    assert "is recalled" in live.change("recall", **given).text
    done, begun = live.console.audit.newest(2)
    assert (done["what"], begun["result"], done["result"]) == ("recall", "begun", "done")
    assert begun["before"]["message"] == by_page.message_id  # type: ignore[index]
    assert "recall failed" in live.change("recall", **given).text, "it is recalled already"
    assert 'href="/change/recall"' in live.get("/delays").text
    given["handle"] = str(by_handle.recall_handle)
    assert "and not Bills" in live.change("recall", **{**given, "topic": "Bills"}).text
    assert "handle is invalid" in live.change("recall", **{**given, "handle": "bm8="}).text
    assert "is recalled" in live.change("recall", **given).text


def _offset_id(visit: Visit, message_id: str) -> str:
    with visit.console.cluster.session.within():
        return visit.console.cluster.session.find_message(message_id, "Orders").offset_message_id


def test_a_change_without_an_audit_entry_is_not_executed(
    live: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreError("audit.log cannot be written: no space left on device.")

    with monkeypatch.context() as patched:
        patched.setattr(live.console.audit, "note", full)
        page = live.change("topic", **{**MADE, "topic": "Unnoted"})
    assert page.status_code == 502 and "no space left" in page.text
    live.console.watch.forget()
    assert "Unnoted" not in live.console.watch.newest().topics
