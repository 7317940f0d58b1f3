"""The address patterns of plain_acl.yml: sources that need no key.

    (empty)                                 no address
    *   *.*.*.*   *:*:*:*:*:*:*:*           every address
    10.0.0.7   ::1                          one address
    10.0.0.1,10.0.0.2                       each of them, without blanks
    10.0.0.{1,2}   2001:db8::{a,b}          each of these as the last part
    10.0.0.*   10.0.*.*   10.*.*.*          everything behind a part
    10.0.0.4-9   10.0.1-20.*                a range, both ends included, in parts 2 to 4
    1050::5:1-200   1050::5:*               a range in the last group, in hexadecimal
    1050::5:1-20:*                          a range in the last group but one
    10.0.0.0/8   2001:db8::/32              a network; TroupeMQ extension
    ::ffff:10.0.0.7   ::ffff:10.0.0.0/104   IPv4 as IPv6; 4.9.7 matches no peer by these

Each pattern becomes ranges of numbers. Patterns that 4.9.7 misreads, or that make it fail at every
request, are refused. Examples are a number behind a wildcard, a range that ends before its start,
and a range or wildcard where 4.9.7 compares none.

Source: acl/plain/RemoteAddressStrategyFactory.java.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network

from storage.errors import StoreError

_EVERYBODY = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_V4_PARTS, _V4_PART_MAX = 4, 255
_V6_GROUPS, _V6_GROUP_MAX = 8, 0xFFFF
_V4_MAX, _V6_MAX = (1 << 32) - 1, (1 << 128) - 1
_MAPPED = 0xFFFF
"""Prefix of an IPv4 address that is written as IPv6."""

Range = tuple[int, int, int]
"""IP version, first and last address as numbers."""


class AddressError(StoreError):
    """An invalid address pattern; the text names it."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Set of addresses; an allowlist of 1 MiB has 500,000 ranges, and each peer is looked up."""

    ranges: tuple[Range, ...] = ()
    """Sorted and disjoint."""

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> "Addresses":
        """Return the set of all addresses in these ranges."""
        found: list[Range] = []
        for version, first, last in sorted(ranges):
            if found and found[-1][0] == version and first <= found[-1][2]:
                _, begin, end = found.pop()
                found.append((version, begin, max(last, end)))
            else:
                found.append((version, first, last))
        return cls(tuple(found))

    def __contains__(self, address: IPv4Address | IPv6Address) -> bool:
        version, number = address.version, int(address)
        at = bisect_right(self.ranges, (version, number, _V6_MAX)) - 1
        return at >= 0 and self.ranges[at][0] == version and number <= self.ranges[at][2]

    def __bool__(self) -> bool:
        return bool(self.ranges)


NOWHERE = Addresses()


def parse_addresses(*texts: str) -> Addresses:
    """Return the addresses that these patterns mean. Raise AddressError."""
    return Addresses.of(each for text in texts for each in _ranges(text))


def _ranges(text: str) -> Iterable[Range]:
    if not text.strip():
        return ()
    if text in _EVERYBODY:
        return (4, 0, _V4_MAX), (6, 0, _V6_MAX)
    if "{" in text or "}" in text:
        return [_single(each, text) for each in dict.fromkeys(_unfolded(text))]
    if "," in text:
        return [_single(each, text) for each in dict.fromkeys(text.split(","))]
    if "/" in text:
        return (_network(text),)
    if "*" in text or "-" in text:
        return (_v6_range(text) if ":" in text else _v4_range(text),)
    return (_single(text, text),)


def _wrong(text: str, why: str = "") -> AddressError:
    return AddressError(
        f"Netaddress examine Exception netaddress is {text}" + (f": {why}" if why else "")
    )


def _single(text: str, whole: str) -> Range:
    try:
        address = IPv6Address(text) if ":" in text else IPv4Address(text)
    except ValueError:
        raise _wrong(whole, f"{text!r} is not an address" if text != whole else "") from None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # peers are converted the same way
    return address.version, int(address), int(address)


def _network(text: str) -> Range:
    try:
        network = ip_network(text)
    except ValueError as error:
        raise _wrong(text, str(error)) from None
    first, last = int(network.network_address), int(network.broadcast_address)
    if first >> 32 == last >> 32 == _MAPPED:
        return 4, first & _V4_MAX, last & _V4_MAX
    return network.version, first, last


def _unfolded(text: str) -> list[str]:
    head, brace, rest = text.partition("{")
    if not brace or not rest.endswith("}") or not head.endswith((".", ":")):
        raise _wrong(text, "braces must be the last part")
    members = rest[:-1].split(",")
    if "{" in rest or not all(members):
        raise _wrong(text, "write numbers with commas between braces")
    return [head + member for member in members]


def _v4_range(text: str) -> Range:
    """Return the range; every part behind the first open one is open."""
    parts = text.split(".")
    if len(parts) != _V4_PARTS:
        raise _wrong(text, "it needs four parts")
    fixed = [index for index, part in enumerate(parts) if "*" not in part and "-" not in part]
    open_at = next(index for index in range(_V4_PARTS) if index not in fixed)
    if open_at == 0:
        raise _wrong(text, "the first part must be a number")
    first, last = _ends(parts[open_at], _V4_PART_MAX, 10, text)
    if any(part != "*" for part in parts[open_at + 1 :]):
        raise _wrong(text, f"behind {parts[open_at]} only * counts")
    low = high = 0
    for part in parts[:open_at]:
        number = _number(part, _V4_PART_MAX, 10, text)
        low, high = low << 8 | number, high << 8 | number
    low, high = low << 8 | first, high << 8 | last
    below = 8 * (_V4_PARTS - 1 - open_at)
    return 4, low << below, (high + 1 << below) - 1


def _v6_range(text: str) -> Range:
    head, colon, tail = text.rpartition(":")
    below = 0
    if tail == "*" and "-" in head.rpartition(":")[2]:
        head, colon, tail = head.rpartition(":")
        below = 16
    if not colon or "*" in head or "-" in head:
        raise _wrong(text, "a range must be the last group, or the last but one before *")
    first, last = _ends(tail, _V6_GROUP_MAX, 16, text)
    rest = ":0" if below else ""
    try:
        low = int(IPv6Address(f"{head}:{first:x}{rest}"))
        high = int(IPv6Address(f"{head}:{last:x}{rest}"))
    except ValueError:
        raise _wrong(text) from None
    return 6, low, high + (1 << below) - 1


def _ends(part: str, largest: int, base: int, text: str) -> tuple[int, int]:
    if part == "*":
        return 0, largest
    low, dash, high = part.partition("-")
    first = _number(low, largest, base, text)
    last = _number(high, largest, base, text)
    if not dash or last < first or last == 0:
        raise AddressError(f"Netaddress examine scope Exception netaddress is {text}")
    return first, last


def _number(part: str, largest: int, base: int, text: str) -> int:
    digits = "0123456789abcdef" if base == 16 else "0123456789"
    if not part or not set(part.lower()) <= set(digits) or len(part) > 4:
        raise _wrong(text, f"{part!r} is not a number")
    number = int(part, base)
    if number > largest:
        raise AddressError(f"Netaddress examine scope Exception netaddress is {text}")
    return number
