"""The addresses of administrators: their requests from elsewhere are refused, whoever signs.

The setting adminAllowedAddresses. It needs no accounts, so that also a server without access
control can be used by everybody and administered from a few machines only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from actors.access.rights import RequiredPermission, admin_codes
from actors.engine.rate_limited_log import RateLimitedLog
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.host import host_of
from storage.access.addresses import Addresses


@dataclass(frozen=True)
class Administration:
    """Of one server."""

    codes: frozenset[int]
    """What only administrators ask."""
    allowed: Addresses
    rarely: RateLimitedLog

    def check(self, code: int, remote: str) -> None:
        """`remote`: address and port of who asks. Raises RemoteError for one from elsewhere."""
        host = host_of(remote)
        try:
            if ip_address(host) in self.allowed:
                return
        except ValueError:  # no address at all
            pass
        self.rarely.warn("administration refused", address=host, code=code, names=[host])
        raise RemoteError(
            ResponseCode.NO_PERMISSION,
            f"request code={code} is not taken from {host}: see adminAllowedAddresses there",
        )


def administration(
    rights: Mapping[int, RequiredPermission], allowed: Addresses | None, rarely: RateLimitedLog
) -> Administration | None:
    """None where administrators may be everywhere."""
    return None if allowed is None else Administration(admin_codes(rights), allowed, rarely)
