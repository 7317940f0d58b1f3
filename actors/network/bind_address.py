"""Addresses on which servers listen: one address, or all of IPv4 and IPv6.

    *          all addresses of both families; only IPv4 if the kernel has no IPv6
    ::         all addresses of both families; an error if the kernel has no IPv6
    0.0.0.0    all IPv4 addresses
    else       that address; a name is resolved among IPv4 addresses

IPv4 peers of a socket for both families are shown as IPv4 (`connections.plain_address`).

KnownHosts has the names by which browsers and scrapers may call an HTTP port. A hostile page may
point its own name at an address of this network (DNS rebinding). A browser then sends requests to
this port, with that name as Host. An address cannot be pointed elsewhere.
"""

from collections.abc import Iterable
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from ipaddress import ip_address
from socket import (
    AF_INET,
    AF_INET6,
    SOCK_STREAM,
    AddressFamily,
    create_server,
    getaddrinfo,
    has_dualstack_ipv6,
    socket,
)

from actors.config import BrokerConfig, ConfigError

EVERYWHERE, ANY_V6 = "*", "::"
BACKLOG = 1024
BOTH = frozenset((AF_INET, AF_INET6))
_NAMES = {AF_INET: "IPv4", AF_INET6: "IPv6"}


def bound_to(host: str, port: int) -> socket:
    """Return a socket that listens at this setting. Raises OSError, UnicodeError."""
    if host in (EVERYWHERE, ANY_V6) and has_dualstack_ipv6():
        try:
            return create_server(
                (ANY_V6, port), family=AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        except OSError as error:
            if host == ANY_V6 or error.errno not in (EADDRNOTAVAIL, EAFNOSUPPORT):
                raise
    family = AF_INET6 if ":" in host else AF_INET
    return create_server(("" if host == EVERYWHERE else host, port), family=family, backlog=BACKLOG)


def reached_at(host: str) -> str:
    """Return the address by which this machine reaches a server with this setting."""
    return {EVERYWHERE: "127.0.0.1", "0.0.0.0": "127.0.0.1", ANY_V6: "::1"}.get(host, host)


def families_of(host: str) -> frozenset[AddressFamily]:
    """Return the address families of a literal or a name; both if the name does not resolve."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        try:
            found = {each[0] for each in getaddrinfo(host, None, type=SOCK_STREAM)}
        except (OSError, UnicodeError):
            return BOTH
        return frozenset(found)
    is_v6 = address.version == 6 and address.ipv4_mapped is None
    return frozenset((AF_INET6 if is_v6 else AF_INET,))


def listened_families(host: str) -> frozenset[AddressFamily]:
    """Return the address families on which a server with this setting listens."""
    if host in (EVERYWHERE, ANY_V6):
        return BOTH if has_dualstack_ipv6() else frozenset((AF_INET,))
    return frozenset((AF_INET6 if ":" in host else AF_INET,))


def require_listened(config: BrokerConfig) -> None:
    """Raise ConfigError if an advertised address has a family without a listener."""
    ha_setting = "haBindAddress" if config.ha_bind_address else "bindAddress"
    advertised = [("brokerIP1", config.broker_ip1, "bindAddress", config.bind_address)]
    if not config.is_slave:
        advertised.append(("brokerIP2", config.broker_ip2, ha_setting, config.ha_address))
    for setting, host, bind_setting, bind in advertised:
        families, listened = families_of(host), listened_families(bind)
        if not families & listened:
            names = ", ".join(_NAMES.get(each, str(each)) for each in families)
            here = ", ".join(_NAMES[each] for each in listened)
            advice = f"set {bind_setting}=* for both, or another {setting}"
            if bind == EVERYWHERE:
                advice = f"this machine has no IPv6: set another {setting}"
            raise ConfigError(
                f"{setting} is {host} ({names}), and the broker listens on {here} only"
                f" ({bind_setting} is {bind}): {advice}."
            )


ANY = "*"
OWN_NAMES = ("localhost",)


class KnownHosts:
    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names`: configured names, possibly with blanks around them; `*` accepts every name."""
        self._names = {each.strip().lower().rstrip(".") for each in (*OWN_NAMES, *names)}

    def knows(self, host: str) -> bool:
        name = host_name(host)
        try:
            ip_address(name)
        except ValueError:
            return bool(name) and (ANY in self._names or name in self._names)
        return True


def host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")
