"""Settings as brokers and name servers tell them: lines of `name=value`."""


def properties_of(body: bytes | memoryview | None) -> dict[str, str]:
    """The settings in a body, in order of their names; comments are passed over."""
    found = {}
    for line in bytes(body or b"").decode(errors="replace").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name.strip()] = value.strip()
    return dict(sorted(found.items()))
