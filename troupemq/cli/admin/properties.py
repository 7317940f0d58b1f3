"""Settings as brokers and name servers tell them: lines of `name=value`, escaped as in Java."""

import click

from actors.settings.properties_file import format_property, parse_properties
from protocol.codes import RequestCode
from storage.spelling import closest
from troupemq.cli.admin.session import Session
from troupemq.client.errors import ClientError


def setting(key: str, value: str) -> bytes:
    """One setting to be changed. Raises click.UsageError for what is more than one line."""
    if not key.strip() or any(each in key + value for each in "\r\n"):
        raise click.UsageError("A setting is one line, and has a name.")
    return format_property(key.strip(), value).encode()


def check_known(session: Session, address: str, code: RequestCode, key: str) -> None:
    """Raise ClientError for a key that misspells a setting of the server; `code` asks for those.

    A server answers success for a key that it does not know.
    """
    try:
        known = properties_of(session.ask(address, code).body)
    except ClientError:
        return  # the change itself fails with the reason, or is allowed where this is not
    name = key.strip()
    if name not in known and (found := closest(name, known)) is not None:
        raise ClientError(f"unknown setting {name}: did you mean {found}? nothing was changed")


def and_says(remark: str | None) -> str:
    """What a server adds to its yes: that it has to be restarted, say."""
    return f" It says: {remark}" if remark else ""


def properties_of(body: bytes | memoryview | None) -> dict[str, str]:
    """The settings in a body, in order of their names; comments are passed over."""
    found = {}
    for line in bytes(body or b"").decode(errors="replace").split("\n"):
        if "=" in line:
            found.update(_setting_in(line.strip()))
    return dict(sorted(found.items()))


def _setting_in(line: str) -> dict[str, str]:
    """RocketMQ writes values as they are: one that cannot be read as escaped is taken so."""
    try:
        return parse_properties(line)
    except ValueError:
        name, _, value = line.partition("=")
        return {name.strip(): value.strip()}
