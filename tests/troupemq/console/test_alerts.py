"""Alerts by webhook and mail at the start and the end of a finding; failures stop nothing."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email import message_from_string
from email.utils import parsedate_to_datetime
from errno import EIO
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from threading import Thread
from typing import ClassVar
from unittest.mock import Mock

import pytest

from storage.errors import StoreError
from troupemq.client.admin import BrokerPlace
from troupemq.console.alerts import HIDDEN_MS, Alerts, AlertSettings, load_alert_settings
from troupemq.console.snapshot import BrokerSummary, ClusterSnapshot, GroupSummary

PLACE, OTHER = BrokerPlace("C", "a", 0, "h:1"), BrokerPlace("C", "b", 0, "h:2")


def now(lag: int) -> ClusterSnapshot:
    group = GroupSummary("g\x1b[31m\n", lag, members=0)
    return ClusterSnapshot(5, brokers=[BrokerSummary(PLACE, {"x": "y"})], groups={"g": group})


class Hook(BaseHTTPRequestHandler):
    bodies: ClassVar[list[dict[str, object]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(json.loads(body))
        self.send_response(500 if "fail" in self.path else 204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Mailbox(StreamRequestHandler):
    mails: ClassVar[list[str]] = []

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        text: list[str] | None = None
        for raw in self.rfile:
            line = raw.decode().rstrip("\r\n")
            if text is not None and line != ".":
                text.append(line)
                continue
            if text is not None:
                self.mails.append("\n".join(text))
                text = None
            elif line.upper() == "DATA":
                text = []
            answer = b"221 bye" if line.upper() == "QUIT" else b"250 ok"
            self.wfile.write((answer if text is None else b"354 go on") + b"\r\n")


@pytest.fixture
def webhook() -> Iterator[str]:
    Hook.bodies.clear()
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def mail_port() -> Iterator[int]:
    Mailbox.mails.clear()
    with TCPServer(("127.0.0.1", 0), Mailbox) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_lasting_finding_is_sent_once_and_at_its_end(webhook: str, tmp_path: Path) -> None:
    alerts = Alerts(AlertSettings(webhook=f"{webhook}/x"), tmp_path / "thresholds.json")
    for lag in (3, 0, 3, 3, 3, 3, 0, 0):
        alerts.look(now(lag))
    sentence = "The group g\\x1b[31m has a consumer lag of 3 messages and no member."
    assert Hook.bodies == [
        {"text": sentence, "began": [sentence], "ended": []},
        {"text": f"Over: {sentence}", "began": [], "ended": [sentence]},
    ]
    assert [each.what for each in alerts.told] == ["began", "ended"]


SILENT = ClusterSnapshot(5, brokers=[BrokerSummary(PLACE)], missing=["a does not answer"])
UNREACHED = ClusterSnapshot(5, missing=["no name server answers"])
CRASHED = ClusterSnapshot(
    5, brokers=[BrokerSummary(OTHER, {"x": "y"})], gone=[BrokerSummary(PLACE)]
)
UNTOLD = ClusterSnapshot(5, brokers=[BrokerSummary(PLACE, {"x": "y"})], missing=["no lags of a"])


@pytest.mark.parametrize("partial", [SILENT, UNREACHED, CRASHED, UNTOLD])
def test_missing_answers_do_not_end_an_alert(
    webhook: str, tmp_path: Path, partial: ClusterSnapshot
) -> None:
    alerts = Alerts(AlertSettings(webhook=webhook), tmp_path / "thresholds.json")
    for snapshot in (now(3), now(3), partial, now(3), now(3)):
        alerts.look(snapshot)
    sentence = "The group g\\x1b[31m has a consumer lag of 3 messages and no member."
    assert Hook.bodies == [{"text": sentence, "began": [sentence], "ended": []}]
    alerts.look(replace(partial, taken_ms=5 + HIDDEN_MS))  # as of a broker that never comes back
    assert Hook.bodies[-1]["ended"] == [sentence]


def test_mail_has_the_text_of_the_webhook(mail_port: int, tmp_path: Path) -> None:
    settings = AlertSettings(
        mail_host="127.0.0.1", mail_port=mail_port, mail_from="mq@here", mail_to="ops@here"
    )
    alerts = Alerts(settings, tmp_path / "thresholds.json")
    alerts.look(now(3))
    alerts.look(now(3))
    (mail,) = Mailbox.mails
    assert "To: ops@here" in mail and "TroupeMQ: The group g" in mail
    sent = parsedate_to_datetime(message_from_string(mail)["Date"])
    assert abs(sent - datetime.now(UTC)) < timedelta(minutes=5)
    assert "troupemq" in message_from_string(mail)["Message-ID"]
    assert [each.failure for each in alerts.told] == [""]


def test_a_test_alert_is_delivered_like_others_and_reports_failures(
    webhook: str, tmp_path: Path
) -> None:
    alerts = Alerts(AlertSettings(webhook=f"{webhook}/x"), tmp_path / "thresholds.json")
    assert alerts.tell_trial(5, "ops") == ""
    assert "sent by ops" in str(Hook.bodies[0]["text"])
    alerts = Alerts(AlertSettings(webhook=f"{webhook}/fail"), tmp_path / "thresholds.json")
    assert "The webhook failed: " in alerts.tell_trial(5, "ops")


@pytest.mark.parametrize(
    "where", ["http://127.0.0.1:1/", "{}/fail", "http://[::1", "http://127.0.0.1:1/s3cret x"]
)
def test_a_failed_delivery_is_shown(webhook: str, tmp_path: Path, where: str) -> None:
    settings = AlertSettings(webhook=where.format(webhook), mail_host="127.0.0.1", mail_port=1)
    alerts = Alerts(settings, tmp_path / "thresholds.json")
    alerts.look(now(3))
    alerts.look(now(3))
    assert "The webhook failed: " in alerts.told[0].failure
    assert "s3cret" not in alerts.told[0].failure


def test_a_webhook_without_http_is_reported_without_its_bytes(
    mail_port: int, tmp_path: Path
) -> None:
    """Regression: this ended the thread of the alerts."""
    settings = AlertSettings(webhook=f"http://127.0.0.1:{mail_port}/")
    alerts = Alerts(settings, tmp_path / "thresholds.json")
    assert alerts.tell_trial(5, "ops") == "The webhook failed: the server does not speak HTTP."


def test_alert_thresholds_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.json"
    alerts = Alerts(AlertSettings(), path)
    alerts.set_thresholds({"lag_minutes": 7, "nonsense": 1})
    again = Alerts(AlertSettings(), path).thresholds
    assert again.lag_minutes == 7 and again.lag_messages == 10_000
    path.write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        Alerts(AlertSettings(), path)


def test_thresholds_are_synced_before_they_replace_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut could leave an empty file, with which no console starts."""
    path = tmp_path / "thresholds.json"
    alerts = Alerts(AlertSettings(), path)
    alerts.set_thresholds({"lag_minutes": 7})
    monkeypatch.setattr(os, "fdatasync", Mock(side_effect=OSError(EIO, "Input/output error")))
    with pytest.raises(StoreError, match=r"thresholds\.json.*check the disk"):
        alerts.set_thresholds({"lag_minutes": 8})
    assert alerts.thresholds.lag_minutes == 7
    assert Alerts(AlertSettings(), path).thresholds.lag_minutes == 7


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not a JSON object"),
        ("[]", "not a JSON object"),
        ('{"hook": ""}', "hook is unknown; did you mean webhook"),
        ('{"x": ""}', "x is unknown; known are webhook"),
        ('{"mail_port": "25"}', "mail_port must be a int"),
        ('{"webhook": "file:///etc/passwd"}', "must begin with http"),
    ],
)
def test_invalid_settings_are_a_one_sentence_error(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "alerts.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=sentence):
        load_alert_settings(path)
    with pytest.raises(StoreError, match="cannot be read"):
        load_alert_settings(tmp_path / "none")
    path.write_text('{"webhook": "https://chat.example/x"}')
    assert load_alert_settings(path).tells and not load_alert_settings(None).tells


def test_a_choice_of_the_operator_is_no_alert(tmp_path: Path) -> None:
    """A broker without access control is a warning on pages, not news at each start."""
    alerts = Alerts(AlertSettings(), tmp_path / "thresholds.json")
    for _ in range(3):
        alerts.look(
            ClusterSnapshot(5, brokers=[BrokerSummary(PLACE, {"x": "y"})], unguarded=[PLACE])
        )
    assert list(alerts.told) == []
