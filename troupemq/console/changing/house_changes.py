"""Changes of the console itself: users, passwords, tokens and alert thresholds."""

from collections.abc import Sequence
from dataclasses import asdict
from time import time_ns
from typing import Any

from protocol.java_numbers import plain_number
from troupemq.client.errors import ArgumentIllegal
from troupemq.console.accounts import PASSWORD_CHARS_MIN, ROLES, name_fault, role_fault
from troupemq.console.asking import PageRequest
from troupemq.console.changes import ConsoleChange, Given, register
from troupemq.console.cluster import CommandResult
from troupemq.console.given import plain
from troupemq.console.parts import Input
from troupemq.console.rendering import heading

_THRESHOLD_MAX = 10**9 - 1


def _user(asked: PageRequest, given: Given, out: CommandResult[Any]) -> None:
    name, role = given["name"], given["role"]
    _check(name_fault(name) or role_fault(role))
    accounts = asked.console.accounts
    admins = [each for each, its_role in accounts.users().items() if its_role == "admin"]
    if admins == [name] and role != "admin":
        raise ArgumentIllegal("The last admin must keep its role: make another user admin first")
    password = accounts.new_password(name, role)
    asked.console.sessions.end_of(name)
    out.done("The password is shown only once.", user=name, role=role, password=password)


def _check(fault: str | None) -> None:
    """Raise ArgumentIllegal for a fault."""
    if fault:
        raise ArgumentIllegal(fault)


def _password(asked: PageRequest, given: Given, out: CommandResult[Any]) -> None:
    accounts, name = asked.console.accounts, asked.viewer.name
    throttle = asked.console.throttle
    if (wait_s := throttle.wait_s(name)) > 0:
        raise ArgumentIllegal(f"Too many wrong passwords: try again in {wait_s:.0f} s")
    throttle.failed(name)
    if asked.viewer.by_token or accounts.check(name, given["old"]) is None:
        raise ArgumentIllegal("The current password is wrong")
    throttle.succeeded(name)
    if len(given["new"]) < PASSWORD_CHARS_MIN:
        least = f"use at least {PASSWORD_CHARS_MIN} characters"
        raise ArgumentIllegal(f"The new password is too short: {least}")
    if given["new"] != given["again"]:
        raise ArgumentIllegal("The two new passwords differ")
    accounts.set_password(name, given["new"])
    asked.console.sessions.end_of(name)
    out.sentences.append("The password is changed: log in with it.")


def _token(asked: PageRequest, given: Given, out: CommandResult[Any]) -> None:
    _check(name_fault(given["name"]) or role_fault(given["role"]))
    token = asked.console.accounts.new_token(given["name"], given["role"])
    sentence = "The token is shown only once. Send it as Authorization: Bearer …"
    out.done(sentence, token=token, role=given["role"])


def _remove_user(asked: PageRequest, given: Given, out: CommandResult[Any]) -> None:
    name = given["name"]
    if not asked.console.accounts.remove_user(name):
        raise ArgumentIllegal(f"{name} cannot be removed: it is missing or the last admin")
    asked.console.sessions.end_of(name)
    out.sentences.append(f"{name} is removed.")


def _remove_token(asked: PageRequest, given: Given, out: CommandResult[Any]) -> None:
    if not asked.console.accounts.remove_token(given["name"]):
        raise ArgumentIllegal(f"Token {given['name']} not found")
    out.sentences.append(f"The token {given['name']} is removed.")


def _thresholds(asked: PageRequest, given: Given, out: CommandResult[Any]) -> None:
    numbers = {name: plain_number(value, _THRESHOLD_MAX) for name, value in given.items()}
    if wrong := [name for name, number in numbers.items() if number is None]:
        raise ArgumentIllegal(f"{', '.join(wrong)} invalid: use a whole number above 0")
    asked.console.alerts.set_thresholds({name: number or 0 for name, number in numbers.items()})
    out.sentences.append("The thresholds are changed.")


def _trial(asked: PageRequest, given: Given, out: CommandResult[Any]) -> None:
    alerts = asked.console.alerts
    if not alerts.settings.tells:
        raise ArgumentIllegal("Alerts have no destination: start the console with --alerts FILE")
    _check(alerts.tell_trial(time_ns() // 1_000_000, asked.viewer.name))
    out.sentences.append("The test alert is sent: check that it arrived.")


def _threshold_inputs(asked: PageRequest) -> Sequence[Input]:
    return [
        Input(name, heading(name), "number", str(value), needed=True, rule=plain)
        for name, value in asdict(asked.console.alerts.thresholds).items()
    ]


def _name_and_role(asked: PageRequest) -> Sequence[Input]:
    return (
        Input("name", "Name", needed=True),
        Input("role", "Role", "choice", "viewer", ROLES, needed=True),
    )


def _name(asked: PageRequest) -> Sequence[Input]:
    return (Input("name", "Name", needed=True),)


register(
    ConsoleChange(
        "user",
        "Add a user or reset a password",
        "admin",
        _name_and_role,
        None,
        do=_user,
        about="The console generates the password and shows it once. Sessions of the user end.",
    ),
    ConsoleChange("remove-user", "Remove a user", "admin", _name, None, do=_remove_user),
    ConsoleChange("token", "Create a token for /api", "admin", _name_and_role, None, do=_token),
    ConsoleChange("remove-token", "Remove a token", "admin", _name, None, do=_remove_token),
    ConsoleChange(
        "password",
        "Change your password",
        "viewer",
        lambda asked: (
            Input("old", "Current password", "secret", needed=True),
            Input("new", "New password", "secret", needed=True),
            Input("again", "New password again", "secret", needed=True),
        ),
        None,
        do=_password,
    ),
    ConsoleChange(
        "alert-trial",
        "Send a test alert",
        "admin",
        lambda asked: (),
        None,
        do=_trial,
    ),
    ConsoleChange(
        "thresholds",
        "Change the alert thresholds",
        "admin",
        _threshold_inputs,
        None,
        do=_thresholds,
    ),
)
