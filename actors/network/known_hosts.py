"""The names by which browsers and scrapers may call a port of HTTP.

A page of a stranger may point its own name at an address of this network (DNS rebinding). A browser
then sends requests here for it, with that name as Host. An address cannot be pointed elsewhere.
"""

from collections.abc import Iterable
from ipaddress import ip_address

ANY = "*"
OWN_NAMES = ("localhost",)


class KnownHosts:
    """Addresses, this machine's localhost, and some names more."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names`: those of settings, perhaps with blanks around; `*` is any."""
        self._names = {each.strip().lower().rstrip(".") for each in (*OWN_NAMES, *names)}

    def knows(self, host: str) -> bool:
        """Return whether this Host may be asked for."""
        name = host_name(host)
        try:
            ip_address(name)
        except ValueError:
            return bool(name) and (ANY in self._names or name in self._names)
        return True


def host_name(host: str) -> str:
    """A Host without its port, in small letters."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")
