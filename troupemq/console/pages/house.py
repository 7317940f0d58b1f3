"""The pages of the console's own house: users and tokens, alerts, the audit log."""

from dataclasses import asdict
from datetime import datetime

from troupemq.client.admin import Time
from troupemq.console.asking import PageRequest, page
from troupemq.console.changes import change_link, change_links
from troupemq.console.findings import findings_of
from troupemq.console.parts import Facts, Note, Notes, Page, RowTable

ENTRIES = 200


@page("/users", "admin")
def users(asked: PageRequest) -> Page:
    """Who may log in here, and the tokens of programs."""
    accounts = asked.console.accounts
    people = [
        {
            "user": name,
            "role": role,
            "password": change_link(asked, "New password", "user", {"name": name, "role": role}),
            "remove": change_link(asked, "Remove", "remove-user", {"name": name}),
        }
        for name, role in accounts.users().items()
    ]
    programs = [
        {
            "token": name,
            "role": role,
            "remove": change_link(asked, "Remove", "remove-token", {"name": name}),
        }
        for name, role in accounts.tokens().items()
    ]
    return Page(
        "Users and tokens",
        [
            RowTable("users", "Users of this console", people),
            RowTable("tokens", "Tokens for /api", programs, "There are none."),
            change_links(asked, [("Add a user", "user", {}), ("Make a token", "token", {})]),
        ],
    )


@page("/alerts")
def alerts(asked: PageRequest) -> Page:
    """What is wrong now, from where on it is, and who is told."""
    console = asked.console
    now = asked.snapshot()
    settings = console.settings.alerts
    where = []
    if settings.webhook:
        where.append(Note("fine", "A webhook is told."))
    if settings.mail_host and settings.mail_to:
        where.append(Note("fine", f"Mail goes to {settings.mail_to}."))
    if not where:
        where.append(Note("watch", "Nobody is told: start the console with --alerts FILE."))
    told = [
        {
            "time_ms": Time(each.time_ms),
            "what": each.what,
            "texts": list(each.texts[:3]) if asked.sees_bodies() else None,
            "failure": each.failure or None,
        }
        for each in reversed(console.alerts.told)
    ]
    found = findings_of(now, console.alerts.thresholds)
    notes = [each.note for each in found] or [Note("fine", "Nothing is wrong.")]
    limits = asdict(console.alerts.thresholds)
    return Page(
        "Alerts",
        [
            Notes("findings", "What is wrong now", notes),
            Notes("where", "Who is told", where),
            RowTable("told", "Told since the start of the console", told, "Nothing."),
            Facts("thresholds", "Thresholds", limits),
            change_links(
                asked,
                [
                    ("Change thresholds", "thresholds", limits),
                    *([("Send one to try", "alert-trial", {})] if settings.tells else []),
                ],
            ),
        ],
        now.missing,
        taken_ms=now.taken_ms,
    )


def _time_of(text: object) -> Time:
    try:
        return Time(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return Time(0)


@page("/audit", "admin")
def audit(asked: PageRequest) -> Page:
    """Who has changed what by this console, the newest first."""
    rows = [
        {
            "time_ms": _time_of(each.get("time")),
            "who": each.get("who"),
            "role": each.get("role"),
            "address": each.get("address"),
            "what": each.get("what"),
            "result": each.get("result"),
            "line": each.get("line"),
            "said": each.get("said"),
            "before": each.get("before"),
        }
        for each in asked.console.audit.newest(ENTRIES)
    ]
    return Page("Audit", [RowTable("entries", "", rows, "Nothing was changed yet.")])
