"""Changes of the console itself: users, passwords, tokens and alert thresholds."""

from collections.abc import Sequence
from dataclasses import asdict
from time import time_ns
from typing import Any

from protocol.java_numbers import plain_number
from storage.errors import StoreError
from troupemq.console.accounts import PASSWORD_CHARS_MIN, ROLES, name_fault, role_fault
from troupemq.console.asking import PageRequest
from troupemq.console.changes import ConsoleChange, Given, register
from troupemq.console.cluster import CommandResult
from troupemq.console.given import plain
from troupemq.console.labels import heading
from troupemq.console.parts import Input

_THRESHOLD_MAX = 10**9 - 1


def _user(asked: PageRequest, given: Given) -> CommandResult[Any]:
    out = CommandResult[Any]()
    name = given["name"]
    if fault := name_fault(name) or role_fault(given["role"]):
        out.fail(fault)
        return out
    accounts = asked.console.accounts
    admins = [each for each, role in accounts.users().items() if role == "admin"]
    if admins == [name] and given["role"] != "admin":
        out.fail("The last admin must keep its role: make another user admin first")
        return out
    try:
        password = accounts.new_password(name, given["role"])
    except StoreError as error:
        out.fail(str(error))
        return out
    asked.console.sessions.end_of(name)
    out.rows.append({"user": name, "role": given["role"], "password": password})
    out.sentences.append("The password is shown only once.")
    return out


def _password(asked: PageRequest, given: Given) -> CommandResult[Any]:
    out = CommandResult[Any]()
    accounts, name = asked.console.accounts, asked.viewer.name
    if asked.viewer.by_token or accounts.check(name, given["old"]) is None:
        out.fail("The current password is wrong")
    elif len(given["new"]) < PASSWORD_CHARS_MIN:
        out.fail(f"The new password is too short: use at least {PASSWORD_CHARS_MIN} characters")
    elif given["new"] != given["again"]:
        out.fail("The two new passwords differ")
    else:
        try:
            accounts.set_password(name, given["new"])
        except StoreError as error:
            out.fail(str(error))
            return out
        asked.console.sessions.end_of(name)
        out.sentences.append("The password is changed: log in with it.")
    return out


def _token(asked: PageRequest, given: Given) -> CommandResult[Any]:
    out = CommandResult[Any]()
    if fault := name_fault(given["name"]) or role_fault(given["role"]):
        out.fail(fault)
        return out
    try:
        token = asked.console.accounts.new_token(given["name"], given["role"])
    except StoreError as error:
        out.fail(str(error))
        return out
    out.rows.append({"token": token, "role": given["role"]})
    out.sentences.append("The token is shown only once. Send it as Authorization: Bearer …")
    return out


def _remove_user(asked: PageRequest, given: Given) -> CommandResult[Any]:
    out = CommandResult[Any]()
    if asked.console.accounts.remove_user(given["name"]):
        asked.console.sessions.end_of(given["name"])
        out.sentences.append(f"{given['name']} is removed.")
    else:
        out.fail(f"{given['name']} cannot be removed: it is missing or the last admin")
    return out


def _remove_token(asked: PageRequest, given: Given) -> CommandResult[Any]:
    out = CommandResult[Any]()
    if asked.console.accounts.remove_token(given["name"]):
        out.sentences.append(f"The token {given['name']} is removed.")
    else:
        out.fail(f"Token {given['name']} not found")
    return out


def _thresholds(asked: PageRequest, given: Given) -> CommandResult[Any]:
    out = CommandResult[Any]()
    numbers = {name: plain_number(value, _THRESHOLD_MAX) for name, value in given.items()}
    wrong = [name for name, number in numbers.items() if number is None]
    if wrong:
        out.fail(f"{', '.join(wrong)} invalid: use a whole number above 0")
        return out
    try:
        asked.console.alerts.set_thresholds({name: number or 0 for name, number in numbers.items()})
    except StoreError as error:
        out.fail(str(error))
        return out
    out.sentences.append("The thresholds are changed.")
    return out


def _trial(asked: PageRequest, given: Given) -> CommandResult[Any]:
    out = CommandResult[Any]()
    alerts = asked.console.alerts
    if not alerts.settings.tells:
        out.fail("Alerts have no destination: start the console with --alerts FILE")
        return out
    failure = alerts.tell_trial(time_ns() // 1_000_000, asked.viewer.name)
    if failure:
        out.fail(failure)
    else:
        out.sentences.append("The test alert is sent: check that it arrived.")
    return out


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
