"""The addresses of administrators: their requests from elsewhere are refused, whoever signs.

The setting adminAllowedAddresses. It needs no accounts, so that also a server without access
control can be used by everybody and administered from a few machines only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

from structlog import get_logger

from actors.access.rights import Right, admin_codes
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from storage.access.addresses import Addresses

log = get_logger(__name__)

LOG_EVERY_MS = 60_000
STRANGERS_MAX = 1000


@dataclass(frozen=True)
class Administration:
    """Of one server."""

    codes: frozenset[int]
    """What only administrators ask."""
    allowed: Addresses
    now_ms: Callable[[], int]
    _told_ms: dict[str, int] = field(default_factory=dict)

    def check(self, code: int, remote: str) -> None:
        """`remote`: address and port of who asks. Raises RemoteError for one from elsewhere."""
        host = remote.rpartition(":")[0]
        try:
            if ip_address(host) in self.allowed:
                return
        except ValueError:  # no address at all
            pass
        now_ms = self.now_ms()
        if now_ms - self._told_ms.get(host, -LOG_EVERY_MS) >= LOG_EVERY_MS:
            if len(self._told_ms) >= STRANGERS_MAX:
                self._told_ms.clear()
            self._told_ms[host] = now_ms
            log.warning("administration refused", address=host, code=code)
        raise RemoteError(
            ResponseCode.NO_PERMISSION,
            f"request code={code} is not taken from {host}: see adminAllowedAddresses there",
        )


def administration(
    rights: Mapping[int, Right], allowed: Addresses | None, now_ms: Callable[[], int]
) -> Administration | None:
    """None where administrators may be everywhere."""
    return None if allowed is None else Administration(admin_codes(rights), allowed, now_ms)
