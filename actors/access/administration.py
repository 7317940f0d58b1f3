"""Addresses of administrators: their requests from other addresses are refused, signed or not.

The setting is adminAllowedAddresses. It needs no accounts. A server without access control can thus
be used by all clients and administered from a few machines only.
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
    codes: frozenset[int]
    allowed: Addresses
    rarely: RateLimitedLog

    def check(self, code: int, remote: str) -> None:
        """Raise RemoteError unless the sender's address is allowed; `remote` has a port."""
        host = host_of(remote)
        try:
            if ip_address(host) in self.allowed:
                return
        except ValueError:  # not an address
            pass
        self.rarely.warn("administration refused", address=host, code=code, names=[host])
        raise RemoteError(
            ResponseCode.NO_PERMISSION,
            f"request code={code} is refused from {host}: see its setting adminAllowedAddresses",
        )


def administration(
    rights: Mapping[int, RequiredPermission], allowed: Addresses | None, rarely: RateLimitedLog
) -> Administration | None:
    """Return the check of addresses; None if administrators may use any address."""
    return None if allowed is None else Administration(admin_codes(rights), allowed, rarely)
