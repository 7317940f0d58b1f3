"""What this machine is called and where others reach it, when no setting says so.

Source: RemotingUtil.getLocalAddress, BrokerConfig.localHostName.
"""

import os
from fcntl import ioctl
from socket import (
    AF_INET,
    AF_UNSPEC,
    SOCK_DGRAM,
    gaierror,
    getaddrinfo,
    gethostname,
    if_nameindex,
    inet_ntoa,
    socket,
)
from struct import pack

_SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of an interface."""


def local_address() -> str:
    """The first IPv4 address that is neither loopback nor in 192.168, else the last one found.

    Bridges are passed over; 127.0.0.1 where the machine has no other address.
    """
    found: list[str] = []
    with socket(AF_INET, SOCK_DGRAM) as probe:
        for _, name in if_nameindex():
            if os.path.exists(f"/sys/class/net/{name}/bridge"):
                continue
            try:
                answer = ioctl(probe.fileno(), _SIOCGIFADDR, pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an IPv4 address
            found.append(inet_ntoa(answer[20:24]))
    return preferred(found)


def preferred(addresses: list[str]) -> str:
    """Which of a machine's addresses is told to others."""
    outside = [address for address in addresses if not address.startswith("127.")]
    for address in outside:
        if not address.startswith("192.168"):
            return address
    return outside[-1] if outside else "127.0.0.1"


def local_host_name() -> str:
    """The name a broker has when its file gives it none."""
    return gethostname() or "DEFAULT_BROKER"


def address_of(host: str) -> str:
    """An IPv4 address of this name, as Java prefers it, else another; a literal is its own.

    Raises OSError for a name that nobody knows.
    """
    try:
        found = getaddrinfo(host, None, AF_INET, SOCK_DGRAM)
    except gaierror:
        found = getaddrinfo(host, None, AF_UNSPEC, SOCK_DGRAM)
    return str(found[0][4][0])
