"""Addresses of servers in text form: `host:port`, `[v6]:port`, several with `;` between."""

from protocol.java_numbers import plain_number

PORT_MAX = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[v6]:port`. Raises ValueError for other texts."""
    host, _, port = address.rpartition(":")
    number = plain_number(port, PORT_MAX)
    if "://" in address:
        raise ValueError(f"{address!r} is a URL: write host:port alone")
    if host.endswith(":"):
        raise ValueError(f"{address!r} has no port: write an IPv6 address as [::1]:9876")
    if not host or number is None or len(host.split()) > 1:
        raise ValueError(f"{address!r} is not an address of the form host:port")
    return host.removeprefix("[").removesuffix("]"), number


def split_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of `a:9876;b:9876`.

    Raises ValueError if one is invalid or none is given.
    """
    addresses = tuple(part.strip() for part in text.replace(",", ";").split(";") if part.strip())
    for address in addresses or (text,):
        split_address(address)
    return addresses
