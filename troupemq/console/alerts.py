"""Alerts: findings sent to a webhook and by mail when they begin and when they end.

A finding is sent once two snapshots in a row have it, and again when it is over. While answers are
missing, which may hide it, it stays open for HIDDEN_MS. The settings are a JSON file that only the
operator of the machine writes. A user with the right to change thresholds in a browser must not
make the console call arbitrary addresses.

    webhook      URL that gets a POST of {"text", "began", "ended"}; chats show `text`
    mail_host, mail_port, mail_from, mail_to, mail_user, mail_password, mail_starttls
    thresholds   values changed on the page Alerts, see findings.py
"""

import json
import smtplib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from email.message import EmailMessage
from email.utils import localtime, make_msgid
from http.client import HTTPException, InvalidURL
from pathlib import Path
from threading import Lock
from urllib.request import Request, urlopen

from storage.errors import StoreError, WrongSetting, reason_of
from storage.files.disk import RealDisk
from storage.spelling import did_you_mean
from storage.tables.settings_file import save_settings
from troupemq.client.log import client_logger
from troupemq.console.findings import Alert, Thresholds, findings_of
from troupemq.console.snapshot import ClusterSnapshot
from troupemq.text import one_line

log = client_logger(__name__)

TELL_TIMEOUT_S = 5.0
TOLD_MAX = 200
"""Limit of findings in one message, and of remembered deliveries."""

TURNS = 2
"""Snapshots in a row that must have a finding, so that a restart sends no alert."""

HIDDEN_MS = 600_000
"""Time for which a finding stays open that missing answers may hide, as in a broker's restart."""

OF_ANSWERS = frozenset(("account", "brokers", "gone", "master", "silent"))
"""First words of the keys of findings that are about missing answers themselves."""


@dataclass(frozen=True)
class AlertSettings:
    """Destinations of alerts; none by default."""

    webhook: str = ""
    mail_host: str = ""
    mail_port: int = 25
    mail_from: str = ""
    mail_to: str = ""
    mail_user: str = ""
    mail_password: str = ""
    mail_starttls: bool = False

    @property
    def tells(self) -> bool:
        return bool(self.webhook or (self.mail_host and self.mail_to))


def load_alert_settings(path: Path | None) -> AlertSettings:
    """Read the settings. Raises WrongSetting."""
    if path is None:
        return AlertSettings()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError
    except OSError as error:
        raise WrongSetting(f"{path} cannot be read: {reason_of(error)}.") from None
    except ValueError:
        raise WrongSetting(f"{path} is not a JSON object of alert settings.") from None
    types = {each.name: type(each.default) for each in fields(AlertSettings)}
    for name, value in found.items():
        if name not in types:
            known = f"known are {', '.join(types)}."
            raise WrongSetting(f"{path}: {name} is unknown; {did_you_mean(name, types, known)}")
        if type(value) is not types[name]:
            raise WrongSetting(f"{path}: {name} must be a {types[name].__name__}.")
    settings = AlertSettings(**found)
    if settings.webhook and not settings.webhook.startswith(("http://", "https://")):
        raise WrongSetting(f"{path}: webhook must begin with http:// or https://.")
    return settings


@dataclass(frozen=True)
class AlertDelivery:
    """Sent alert; `failure` says why it could not be delivered."""

    time_ms: int
    what: str
    texts: Sequence[str]
    failure: str = ""


class Alerts:
    """Alerts that are open, and those sent.

    `look` runs on one thread, the other methods on any.
    """

    def __init__(self, settings: AlertSettings, thresholds_path: Path) -> None:
        self.settings = settings
        self._path = thresholds_path
        self._lock = Lock()
        self.thresholds = self._load()
        self.told: deque[AlertDelivery] = deque(maxlen=TOLD_MAX)
        self._seen: dict[str, int] = {}
        self._open: dict[str, Alert] = {}
        self._found_ms: dict[str, int] = {}
        """Time of the last snapshot with a finding, of those open or found."""

    def _load(self) -> Thresholds:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Thresholds()
        except (OSError, ValueError):
            raise StoreError(
                f"{self._path} cannot be read: repair it, or remove it to use the defaults."
            ) from None
        return Thresholds.of(found if isinstance(found, dict) else {})

    def set_thresholds(self, given: Mapping[str, int]) -> None:
        """Change thresholds and save them. Raises StoreError."""
        with self._lock:
            wanted = Thresholds.of({**asdict(self.thresholds), **given})
            save_settings(RealDisk(), str(self._path), json.dumps(asdict(wanted), indent=1))
            self.thresholds = wanted

    def look(self, now: ClusterSnapshot) -> None:
        """Send the findings that began or ended; failures are logged and shown."""
        found = {
            each.key: each for each in findings_of(now, self.thresholds) if not each.is_standing
        }
        self._seen = {key: min(TURNS, self._seen.get(key, 0) + 1) for key in found}
        began = [
            each
            for key, each in found.items()
            if self._seen[key] >= TURNS and key not in self._open
        ]
        self._found_ms = {
            key: now.taken_ms if key in found else self._found_ms[key]
            for key in {**self._open, **found}
        }
        ended = [
            each for key, each in self._open.items() if key not in found and self._is_over(key, now)
        ]
        if not began and not ended:
            return
        over = {each.key for each in ended}
        self._open = {
            **{key: each for key, each in self._open.items() if key not in over},
            **{each.key: each for each in began},
        }
        self._tell(now.taken_ms, began[:TOLD_MAX], ended[:TOLD_MAX])

    def _is_over(self, key: str, now: ClusterSnapshot) -> bool:
        """Return whether a missing finding has ended, and missing answers do not hide it."""
        if now.brokers and key.split()[0] in OF_ANSWERS:
            return True
        is_whole = now.brokers and not now.missing and not now.gone
        is_whole = is_whole and all(each.says for each in now.brokers)
        return bool(is_whole) or now.taken_ms - self._found_ms[key] >= HIDDEN_MS

    def tell_trial(self, time_ms: int, user: str) -> str:
        """Send a test alert for `user`; return why it failed, or an empty text."""
        text = f"Test alert of TroupeMQ, sent by {user}: there is no problem."
        return self._tell(time_ms, [Alert("trial", "watch", text)], [])

    def _tell(self, time_ms: int, began: Sequence[Alert], ended: Sequence[Alert]) -> str:
        began_texts = [one_line(each.text) for each in began]
        ended_texts = [one_line(each.text) for each in ended]
        lines = [*began_texts, *(f"Over: {text}" for text in ended_texts)]
        failures = []
        if self.settings.webhook:
            failures.append(self._to_webhook(lines, began_texts, ended_texts))
        if self.settings.mail_host and self.settings.mail_to:
            failures.append(self._by_mail(lines))
        failure = " ".join(filter(None, failures))
        if failure:
            log.warning("alert delivery failed", reason=failure)
        self.told.append(AlertDelivery(time_ms, "began" if began else "ended", lines, failure))
        return failure

    def _to_webhook(self, lines: Sequence[str], began: Sequence[str], ended: Sequence[str]) -> str:
        body = json.dumps({"text": "\n".join(lines), "began": began, "ended": ended}).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "troupemq-console"}
        try:
            request = Request(self.settings.webhook, body, headers)
            with urlopen(request, timeout=TELL_TIMEOUT_S) as answer:
                answer.read(1)
        except (OSError, HTTPException, ValueError) as error:
            return f"The webhook failed: {_reason(error)}."
        return ""

    def _by_mail(self, lines: Sequence[str]) -> str:
        settings = self.settings
        mail = EmailMessage()
        mail["Subject"] = f"TroupeMQ: {lines[0][:150]}"
        mail["From"] = settings.mail_from or settings.mail_to.split(",")[0].strip()
        mail["To"] = settings.mail_to
        mail["Date"] = localtime()
        mail["Message-ID"] = make_msgid("troupemq")
        mail.set_content("\n".join(lines))
        try:
            with smtplib.SMTP(
                settings.mail_host, settings.mail_port, timeout=TELL_TIMEOUT_S
            ) as server:
                if settings.mail_starttls:
                    server.starttls()
                if settings.mail_user:
                    server.login(settings.mail_user, settings.mail_password)
                server.send_message(mail)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return f"The mail failed: {_reason(error)}."
        return ""


def _reason(error: Exception) -> str:
    """Return the reason without the webhook's path, and without text of a foreign server."""
    if isinstance(error, InvalidURL):
        return "its URL has spaces or control characters"
    if isinstance(error, HTTPException):
        return "the server does not speak HTTP"
    return one_line(str(error))
