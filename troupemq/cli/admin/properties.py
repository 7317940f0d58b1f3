"""Settings as brokers and name servers tell them: lines of `name=value`."""

import click


def setting(key: str, value: str) -> bytes:
    """One setting to be changed. Raises click.UsageError for what is more than one line."""
    if not key.strip() or any(each in key + value for each in "\r\n"):
        raise click.UsageError("A setting is one line, and has a name.")
    return f"{key}={value}\n".encode()


def and_says(remark: str | None) -> str:
    """What a server adds to its yes: that it has to be restarted, say."""
    return f" It says: {remark}" if remark else ""


def properties_of(body: bytes | memoryview | None) -> dict[str, str]:
    """The settings in a body, in order of their names; comments are passed over."""
    found = {}
    for line in bytes(body or b"").decode(errors="replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name.strip()] = value.strip()
    return dict(sorted(found.items()))
