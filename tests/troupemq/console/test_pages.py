"""Every page with a TroupeMQ broker under traffic, as HTML and as JSON."""

import json
import shlex
from collections.abc import Iterator

import pytest

from tests.compat.patience import wait_until
from tests.troupemq.console.conftest import Visit, place_of, queries
from troupemq import Message, Producer, PushConsumer
from troupemq.client.admin import Time
from troupemq.client.admin.life import LifeEvent, MessageLife
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.message import SendResult
from troupemq.client.settings import ConsumerSettings, ProducerSettings
from troupemq.console.asking import PLACES
from troupemq.console.cluster import WatchedCluster
from troupemq.console.pages.message import hexadecimal
from troupemq.servers import Servers

HOSTILE = '"><img src=x onerror=alert(1)>'
COUNT = 12


@pytest.fixture(scope="module")
def traffic(servers: Servers) -> Iterator[list[SendResult]]:
    """Messages in Orders; the group billing has a member, and has consumed them."""
    namesrv = f"127.0.0.1:{servers.ports['namesrv']}"
    seen: list[str] = []
    consumer = PushConsumer(
        "billing",
        lambda views: seen.extend(view.message_id for view in views),
        namesrv,
        begin=ConsumeFrom.FIRST_OFFSET,
        settings=ConsumerSettings(commit_interval_ms=50),
    )
    consumer.subscribe("Orders")
    bodies = [b'{"order": %d, "note": "<script>alert(1)</script>"}' % n for n in range(COUNT - 1)]
    settings = ProducerSettings(trace=True)
    with consumer, Producer("shop", namesrv, settings=settings) as producer:
        sent = [
            producer.send(
                Message("Orders", body, tags="new", keys=f"order-{n}", properties={"p": HOSTILE})
            )
            for n, body in enumerate([*bodies, b"\xff\x00\x1b[2Jbinary"])
        ]
        wait_until(lambda: len(seen) >= COUNT, "all to be consumed")
        cluster = WatchedCluster(namesrv)
        wait_until(lambda: _lag(cluster) == 0, "its offsets to be committed")
        cluster.close()
        yield sent


def _lag(cluster: WatchedCluster) -> int:
    found = cluster.ask(lambda admin: admin.group_progress("billing")).found
    lags = [each.lag for each in found if each.topic == "Orders"]
    return sum(lags) if len(lags) == 2 else COUNT


@pytest.mark.heavy
def test_every_page_exists_as_html_and_json(live: Visit, traffic: list[SendResult]) -> None:
    address = live.console.watch.newest().brokers[0].place.address
    query = queries(address, "billing", traffic[0], "order-0")
    assert query.keys() <= PLACES.keys()
    wanted = dict.fromkeys(PLACES, 200) | {"/job": 404}
    for path, status in wanted.items():
        page = live.get(path, **query.get(path, {}))
        assert page.status_code == status, f"{path}: {page.text}"
        assert "<script>alert" not in page.text and "<img" not in page.text
        assert live.get(f"/api{path}", **query.get(path, {})).status_code == status


def test_the_overview_shows_problems_as_sentences(live: Visit, traffic: list[SendResult]) -> None:
    assert live.json("/")["findings"] == [
        {
            "level": "fine",
            "text": "No problems: 1 broker answers, no group exceeds its lag thresholds.",
        },
        {
            "level": "watch",
            "text": "Every client has every permission at broker-a: access control is off"
            " (aclEnable).",
        },
    ]
    (broker,) = live.json("/brokers")["brokers"]
    assert broker["broker"] == "broker-a" and broker["role"] == "master"


def test_a_topic_shows_its_queues_and_groups(live: Visit, traffic: list[SendResult]) -> None:
    found = live.json("/topic", name="Orders")
    assert sum(row["messages"] for row in found["queues"]) == COUNT
    assert [row["group"] for row in found["groups"]] == ["billing"]
    address = live.console.watch.newest().brokers[0].place.address
    senders = live.json("/producers", broker=address)["producers"]
    assert "shop" in {row["group"] for row in senders}
    rows = live.json("/topics", filter="ORD")["topics"]
    assert [row["topic"] for row in rows] == ["Orders"]
    assert live.json("/topics", filter="nothing")["topics"] == []
    assert live.get("/topic", name="Nowhere").status_code == 404


def test_a_group_shows_its_members_and_progress(live: Visit, traffic: list[SendResult]) -> None:
    found = live.json("/group", name="billing")
    members = found["members"]
    assert isinstance(members, list) and members[0]["language"] == "PYTHON"
    assert {row["topic"] for row in found["queues"]} >= {"Orders"}
    assert found["rebalances"][0]["what"] == "joined"
    client = live.json("/client", group="billing", client=members[0]["client"])
    held = {row["queue"].partition("@")[0]: row for row in client["held"]}
    assert held["Orders"]["commit_offset"] > 0 and not held["Orders"]["dropped"]
    assert held["Orders"]["last_consumed_ms"] > 1_700_000_000_000
    assert {row["topic"]: row["failed_in_an_hour"] for row in client["rates"]}["Orders"] == 0
    assert {row["topic"]: row["expression"] for row in client["subscriptions"]}["Orders"] == "*"
    assert client["settings"]["consumerGroup"] == "billing" and "MainThread" in client["stacks"]
    assert live.get("/group", name="nobody").status_code == 404


def test_members_of_a_group_show_their_subscriptions(
    live: Visit, traffic: list[SendResult]
) -> None:
    found = live.json("/group/members", name="billing")
    assert [row["subscriptions"] for row in found["members"]] != [[]]
    assert found["agreement"] == []
    assert live.json("/group/members", name="nobody")["agreement"][0]["level"] == "trouble"


def test_a_message_is_found_by_every_search(live: Visit, traffic: list[SendResult]) -> None:
    wanted = traffic[3]
    queries: list[dict[str, object]] = [
        {"key": "order-3"},
        {"id": wanted.message_id},
        {"id": wanted.offset_message_id},
        {"text": '"order": 3,'},
        {key: value for key, value in place_of(wanted).items() if key != "topic"} | {"count": 1},
    ]
    for query in queries:
        rows = live.json("/messages", topic="Orders", **query)["messages"]
        assert [row["message"] for row in rows] == [wanted.message_id], query
    rows = live.json("/messages", topic="Orders", tag="old")["messages"]
    assert rows == []
    assert len(live.json("/messages", topic="Orders", begin="2020-01-01")["messages"]) == COUNT
    assert live.json("/messages", topic="Orders", end="2020-01-01")["messages"] == []
    assert "not a time" in live.get("/messages", topic="Orders", begin="yesterday").text
    assert len(live.json("/messages", topic="Orders", count=2)["messages"]) == 2


def test_a_message_shows_its_body_and_consumption(live: Visit, traffic: list[SendResult]) -> None:
    found = live.json("/message", **place_of(traffic[0]))
    assert json.loads(str(found["json"]))["order"] == 0
    assert [row["group"] for row in found["consumers"]] == ["billing"]
    assert found["properties"]["p"] == HOSTILE
    lines = found["commands"]
    assert lines["show_it"].startswith("troupemq admin queryMsgByOffset -t Orders -b broker-a")
    assert shlex.split(lines["send_a_message_like_it"])[6] == found["body"]
    page = live.get("/message", **place_of(traffic[0])).text
    assert page.count(">Copy</button>") == 3 and "/change/resend?id=" in page
    binary = live.json("/message", **place_of(traffic[-1]))
    assert binary["commands"].keys() == {"show_it", "send_it_again"}
    assert str(binary["hex"]).startswith("000000  ff 00 1b 5b 32 4a")
    assert "\x1b" not in live.get("/message", **place_of(traffic[-1])).text
    body = live.get("/message/body", **place_of(traffic[-1]))
    assert body.content == b"\xff\x00\x1b[2Jbinary"
    assert body.headers["content-disposition"].startswith("attachment")
    assert body.headers["content-type"] == "application/octet-stream"
    assert live.get("/message", **{**place_of(traffic[0]), "offset": 9999}).status_code == 404
    assert live.get("/message", topic="Orders").status_code == 404


def test_viewers_see_no_bodies_if_these_are_hidden(
    live: Visit, traffic: list[SendResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    object.__setattr__(live.console.settings, "hide_bodies", True)
    assert "order" in live.get("/message", **place_of(traffic[0])).text
    live.console.accounts.new_password("visitor", "viewer")
    message = live.json("/message", **place_of(traffic[0]))
    assert "json" not in message and "body" not in message and "hex" not in message
    assert "send_a_message_like_it" not in message["commands"]
    rows = live.json("/messages", topic="Orders")["messages"]
    assert {row["body"] for row in rows} == {None}
    for path in ("/messages", "/tail"):
        refused = live.json(path, topic="Orders", text="order")
        assert "cannot search by text" in refused["hidden"][0]["text"] and not refused.get(
            "messages"
        )
        assert 'name="text"' not in live.get(path, topic="Orders").text
    assert live.get("/message/body", **place_of(traffic[0])).status_code == 403
    trace = live.json("/trace", id=traffic[0].message_id, trace_topic="Orders")
    assert "events" not in trace and "RMQ_SYS_TRACE_TOPIC only" in trace["hidden"][0]["text"]
    assert "events" in live.json("/trace", id=traffic[0].message_id)


def test_live_messages_are_shown(live: Visit, traffic: list[SendResult]) -> None:
    page = live.get("/tail", topic="Orders").text
    assert 'hx-trigger="every 2s"' in page and traffic[-1].message_id in page


def test_a_trace_shows_the_steps_of_clients(live: Visit, traffic: list[SendResult]) -> None:
    def events() -> list[dict[str, object]]:
        found = live.json("/trace", id=traffic[0].message_id)["events"]
        assert isinstance(found, list)
        return found

    wait_until(lambda: bool(events()), "the trace to be sent")
    assert events()[0]["what"] == "sent" and events()[0]["after_ms"] == 0


def test_the_life_of_a_message_is_told_in_order(
    live: Visit, traffic: list[SendResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(traffic[0])
    page = live.get("/message", **place).text
    assert 'hx-trigger="load"' in page and 'hx-get="/message/life?topic=Orders' in page
    events = live.json("/message/life", **place)["events"]
    assert [each["what"] for each in events][:3] == ["sent", "stored", "indexed"]
    assert events[0]["after_ms"] == 0 and {each["group"] for each in events} >= {None, "billing"}
    retried = LifeEvent(Time(1), "retried", "billing", detail="delay level 3; reason: secret")
    told = MessageLife("id", "Orders", None, (), (retried,), ("Not known.",))
    monkeypatch.setattr(live.console.cluster.session, "life_of", lambda view: [told])
    assert "secret" in live.get("/message/life", **place).text
    object.__setattr__(live.console.settings, "hide_bodies", True)
    live.console.accounts.new_password("visitor", "viewer")
    (event,) = live.json("/message/life", **place)["events"]
    assert event["detail"] == "delay level 3"


def test_missing_delays_and_transactions_have_an_empty_state(live: Visit) -> None:
    assert "No transaction is open" in live.get("/transactions").text
    assert "No broker has delayed messages" in live.get("/delays").text


def test_times_are_entered_and_shown_in_the_browsers_time_zone(
    live: Visit, traffic: list[SendResult]
) -> None:
    live.client.cookies.set("troupemq_zone", "Asia%2FTokyo")
    tokyo = live.get("/messages", topic="Orders").text
    live.client.cookies.set("troupemq_zone", "../../etc/passwd")
    assert live.get("/messages", topic="Orders").text != tokyo


@pytest.mark.parametrize("query", [{"first": "x"}, {"first": "-1"}, {"rows": "9" * 30}])
def test_invalid_parameters_of_an_address_count_as_missing(
    live: Visit, query: dict[str, str]
) -> None:
    assert live.get("/topics", **query).status_code == 200
    assert live.get("/messages", topic="Orders", count="x", queue="-", offset="\x00").is_success


def test_hexadecimal_shows_offsets_bytes_and_text() -> None:
    lines = hexadecimal(bytes(range(60, 80))).splitlines()
    assert lines[0].startswith("000000  3c 3d 3e") and lines[0].endswith("<=>?@ABCDEFGHIJK")
    assert lines[1].startswith("000010  4c 4d 4e 4f ")
    assert hexadecimal(bytes(10_000)).splitlines()[-1].endswith("bytes more")
