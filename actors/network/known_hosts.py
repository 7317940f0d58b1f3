"""Host names by which browsers and scrapers may call an HTTP port.

A hostile page may point its own name at an address of this network (DNS rebinding). A browser then
sends requests to this port, with that name as Host. An address cannot be pointed elsewhere.
"""

from collections.abc import Iterable
from ipaddress import ip_address

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
