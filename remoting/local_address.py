"""Name and address of this machine, used where no setting names them.

Source: RemotingUtil.getLocalAddress, BrokerConfig.localHostName.
"""

import os
from array import array
from collections.abc import Iterator
from contextlib import suppress
from fcntl import ioctl
from socket import (
    AF_INET,
    AF_INET6,
    AF_UNSPEC,
    SOCK_DGRAM,
    gaierror,
    getaddrinfo,
    gethostbyname,
    gethostname,
    inet_ntoa,
    inet_ntop,
    socket,
)
from struct import Struct

_SIOCGIFCONF = 0x8912
"""Linux: list the IPv4 addresses of all interfaces, in the kernel's order."""
_CONF = Struct(
    "i"  # size of the buffer, then of its content
    "L"  # its address
)
_ENTRY = Struct(
    "=16s"  # name of the interface, perhaps with :label
    "4x"  # family and port
    "4s"  # the address
    "16x"
)
_ADDRESSES_MAX = 1024


def local_address(listens_at: str = "*") -> str:
    """Return this machine's address, chosen as by 4.9.7's broker and clients.

    Of the interfaces' IPv4 addresses the newest counts, without loopback and bridges. Addresses
    of 192.168 come last, the oldest first. Without any, it is the first global IPv6 address. A
    server that listens at one IPv6 address uses that one.
    """
    if ":" in listens_at and listens_at != "::":
        return listens_at
    addresses = [
        address
        for name, address in reversed(_interface_addresses())
        if not os.path.exists(f"/sys/class/net/{name.partition(':')[0]}/bridge")
    ]
    chosen = preferred(addresses)
    if chosen is None and listens_at in ("*", "::"):
        chosen = next(iter(_global_v6_addresses()), None)
    if chosen is None:
        with suppress(OSError):
            chosen = gethostbyname(gethostname())
    return chosen or "127.0.0.1"


def _interface_addresses() -> list[tuple[str, str]]:
    """Return names and addresses, oldest interface first; Java lists them in reverse order."""
    buffer = array("B", bytes(_ADDRESSES_MAX * _ENTRY.size))
    at, buffer_bytes = buffer.buffer_info()
    with socket(AF_INET, SOCK_DGRAM) as probe:
        answer = ioctl(probe, _SIOCGIFCONF, _CONF.pack(buffer_bytes, at))
    written, _ = _CONF.unpack(answer)
    return [
        (name.rstrip(b"\0").decode(), inet_ntoa(address))
        for name, address in _ENTRY.iter_unpack(buffer.tobytes()[:written])
    ]


def _global_v6_addresses() -> Iterator[str]:
    """Yield the addresses of /proc/net/if_inet6 with global scope (fourth column)."""
    with suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as lines:
        for line in lines:
            address, _, _, scope, *_ = line.split()
            if scope == "00":
                yield inet_ntop(AF_INET6, bytes.fromhex(address))


def preferred(addresses: list[str]) -> str | None:
    """Return the address to announce, of addresses in Java's order; None without one."""
    outside = [address for address in addresses if not address.startswith("127.")]
    for address in outside:
        if not address.startswith("192.168"):
            return address
    return outside[-1] if outside else None


def local_host_name() -> str:
    return gethostname() or "DEFAULT_BROKER"


def address_of(host: str) -> str:
    """Return an address of the host, IPv4 first as in Java; a literal is returned as it is.

    Raises OSError for an unknown name.
    """
    try:
        found = getaddrinfo(host, None, AF_INET, SOCK_DGRAM)
    except gaierror:
        found = getaddrinfo(host, None, AF_UNSPEC, SOCK_DGRAM)
    return str(found[0][4][0])
