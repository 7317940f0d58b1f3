"""Pages of the console itself: users and tokens, alerts, and the audit log."""

from dataclasses import asdict
from datetime import datetime

from troupemq.client.admin import Time
from troupemq.console.asking import PageRequest, page, snapshot_page
from troupemq.console.changes import change_link, change_links
from troupemq.console.findings import findings_of
from troupemq.console.parts import Facts, Note, Notes, Page, Part, RowTable

ENTRIES = 200


@page("/users", "admin")
def users(asked: PageRequest) -> Page:
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
            RowTable("tokens", "Tokens for /api", programs, "No tokens: create one for a program."),
            change_links(asked, [("Add a user", "user", {}), ("Create a token", "token", {})]),
        ],
    )


@page("/alerts")
def alerts(asked: PageRequest) -> Page:
    console = asked.console
    now = asked.snapshot()
    settings = console.settings.alerts
    where = []
    if settings.webhook:
        where.append(Note("fine", "Alerts go to a webhook."))
    if settings.mail_host and settings.mail_to:
        where.append(Note("fine", f"Alerts go by mail to {settings.mail_to}."))
    if not where:
        where.append(
            Note("watch", "Alerts have no destination: start the console with --alerts FILE.")
        )
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
    notes = [each.note for each in found] or [Note("fine", "No problems.")]
    limits = asdict(console.alerts.thresholds)
    parts: list[Part] = [
        Notes("findings", "Current problems", notes),
        Notes("where", "Destinations", where),
        RowTable("told", "Alerts sent since the console started", told, "No alerts sent."),
        Facts("thresholds", "Thresholds", limits),
        change_links(
            asked,
            [
                ("Change thresholds", "thresholds", limits),
                *([("Send a test alert", "alert-trial", {})] if settings.tells else []),
            ],
        ),
    ]
    return snapshot_page("Alerts", now, parts)


def _time_of(text: object) -> Time:
    try:
        return Time(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return Time(0)


@page("/audit", "admin")
def audit(asked: PageRequest) -> Page:
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
    return Page("Audit", [RowTable("entries", "", rows, "No changes or logins yet.")])
