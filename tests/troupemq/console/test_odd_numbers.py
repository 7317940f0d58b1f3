"""Pages of what clients and brokers tell of themselves, whatever they call a number.

One message with an odd trace, or one member with odd figures, made its page fail for good.
"""

import json
from datetime import UTC

import pytest

from tests.compat.patience import wait_until
from tests.troupemq.console.conftest import Visit
from troupemq import Message, Producer, PushConsumer
from troupemq.client.admin import BrokerPlace, members
from troupemq.console.changes import ConsoleChange
from troupemq.console.pages import message
from troupemq.console.parts import Facts, Link, Page, RowTable, Size, Span, as_json
from troupemq.console.rendering import Renderer
from troupemq.console.snapshot import BrokerSummary
from troupemq.servers import Servers

HUGE = 10**5000
"""Python refuses to write it out."""

ODD_INFO = {
    "mqTable": {
        ("queueId", "x"): {"cachedMsgCount": "many", "commitOffset": HUGE},
        "a": {"cachedMsgCount": HUGE, "lastPullTimestamp": 1 << 70, "locked": "perhaps"},
        "b": {"cachedMsgCount": 1.5},
        "c": {"cachedMsgCount": "7"},
        "d": [],
    },
    "statusTable": {"T": {"pullTPS": float("nan"), "consumeRT": float("inf")}},
    "subscriptionSet": [{"topic": 1, "subVersion": -(1 << 80)}, 5],
    "properties": {"x": HUGE},
    "jstack": 7,
}


def test_unusual_numbers_of_a_member_are_shown(
    live: Visit, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    namesrv = f"127.0.0.1:{servers.ports['namesrv']}"
    monkeypatch.setattr(members, "json_object", lambda _: ODD_INFO)
    with PushConsumer("odd", lambda views: None, namesrv) as consumer:
        consumer.subscribe("Orders")
        wait_until(
            lambda: bool(live.json("/group/members", name="odd")["members"]), "the member is there"
        )
        found = live.json("/group/members", name="odd")
        (member,) = found["members"]
        assert member["waiting_in_it"] == 7
        said = " ".join(note["text"] for note in found["agreement"])
        assert "an invalid number of messages of the queue" in said
        assert ": 'many'" in said and ": 'a number of 16610 bits'" in said
        assert live.get("/group/members", name="odd").status_code == 200
        page = live.get("/client", group="odd", client=member["client"])
        assert page.status_code == 200 and "a number of 16610 bits" in page.text
        (rate,) = live.json("/client", group="odd", client=member["client"])["rates"]
        assert (rate["pulled_tps"], rate["milliseconds_to_consume"]) == ("nan", "inf")


def test_unusual_numbers_of_a_trace_are_shown(live: Visit, servers: Servers) -> None:
    records = [
        ["Pub", time, "r", "G", "Orders", "odd-id", "", "", "h", "many", "long"]
        for time in ("-", "9" * 5000, str((1 << 63) - 1), "5")
    ]
    body = "".join("\x01".join(each) + "\x02" for each in records).encode()
    with Producer("shop", f"127.0.0.1:{servers.ports['namesrv']}") as producer:
        producer.send(Message("RMQ_SYS_TRACE_TOPIC", body, keys="odd-id"))

    def events() -> list[dict[str, object]]:
        found: list[dict[str, object]] = live.json("/trace", id="odd-id")["events"]
        return found

    wait_until(lambda: len(events()) == 4, "the trace is indexed")
    assert {str(each["time_ms"])[:20] for each in events()} >= {"-", "9" * 20, "5"}
    assert live.get("/trace", id="odd-id").status_code == 200


@pytest.mark.parametrize("text", ["nan", "inf", "-inf 1", "1e400", "9" * 5000, "", "x", " "])
def test_an_invalid_figure_of_a_broker_is_missing(text: str) -> None:
    summary = BrokerSummary(BrokerPlace("c", "b", 0, "h:1"), {"putTps": text})
    assert summary.number("putTps") is None


def test_any_number_can_be_rendered() -> None:
    odd = {"a": HUGE, "b": Span(HUGE), "c": Size(HUGE), "d": float("nan"), "e": [HUGE, -HUGE]}
    page = Page("Odd", [RowTable("rows", "", [odd]), Facts("facts", "", {"f": odd})])
    text = Renderer("").page(page, "/topics", None, "", UTC)
    assert text.count("a number of 16610 bits") >= 5 and "nan" in text
    assert as_json(page)["rows"][0]["b"] == "a number of 16610 bits"


def test_half_of_a_surrogate_pair_in_a_name_fails_no_page() -> None:
    """A broker may report any name."""
    link = Link("T\ud800", "/topic", {"name": "T\ud800"})
    assert link.href == "/topic?name=T%3F"
    page = Page("Odd", [Facts("facts", "", {"a": link})])
    text = Renderer("").page(page, "/topics", None, "", UTC)
    assert 'href="/topic?name=T%3F"' in text and text.encode()


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("odd"), RecursionError("odd")])
def test_an_invalid_answer_is_reported_and_fails_its_page_only(
    live: Visit, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(message, "found_by_key", fail)
    answer = live.get("/trace", id="x")
    assert answer.status_code == 502 and type(error).__name__ in answer.text
    told = live.client.get("/api/trace", params={"id": "x"})
    assert told.status_code == 502 and "cannot be understood" in told.json()["error"]
    assert live.get("/topics").status_code == 200


def test_an_invalid_answer_to_a_change_is_reported_as_that_of_a_page(
    live: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the answer was a bare status 500, without a sentence and security headers."""

    def fail(*_: object, **__: object) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(ConsoleChange, "faults", fail)
    form = live.preview("send", topic="Orders", body="x")
    headers = {"X-CSRF-Token": live.csrf}
    told = live.client.post("/api/change/send", json={"given": {}}, headers=headers)
    assert "cannot be understood" in form.text and "cannot be understood" in told.json()["error"]
    assert form.status_code == told.status_code == 502
    assert "Content-Security-Policy" in form.headers


def test_half_of_a_surrogate_pair_neither_fails_a_change_nor_the_audit_log(live: Visit) -> None:
    """Regression: the change began with status 500; /api/audit then failed until it was old."""
    headers = {"X-CSRF-Token": live.csrf}
    sent = json.dumps({"given": {"topic": "Orders", "body": "\ud800"}, "do": True})
    answer = live.client.post("/api/change/send", content=sent, headers=headers)
    assert answer.status_code == 400 and "JSON" in answer.json()["error"]
    assert [each["what"] for each in live.console.audit.newest(9)] == ["login"]
    live.console.audit.note("a", "admin", "-", "send", given={"body": "\ud800"})
    assert live.json("/audit")


def test_a_failed_page_shows_no_body_to_a_role_without_bodies(
    live: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of Python quote the text that they cannot parse."""

    def fail(*_: object) -> None:
        raise ValueError("invalid literal: 'a part of a body'")

    monkeypatch.setattr(message, "found_by_key", fail)
    assert "a part of a body" in live.get("/trace", id="x").text
    object.__setattr__(live.console.settings, "hide_bodies", True)
    live.console.accounts.new_password("visitor", "viewer")
    answer = live.get("/trace", id="x")
    assert answer.status_code == 502 and "a part of a body" not in answer.text
