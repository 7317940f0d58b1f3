"""Addresses of permitted slaves: a slave gets the commit log and its reports count.

A plain class on the loop. HaMaster uses it, and TlsNegotiator before a TLS handshake. Therefore a
stranger costs no handshake.
"""

from ipaddress import ip_address

from actors.access.access_state import AccessState
from actors.config import BrokerConfig
from actors.engine.rate_limited_log import RateLimitedLog
from actors.settings.access_settings import addresses_of


class Followers:
    """Addresses in `haAllowedAddresses`, or otherwise those that access control permits."""

    def __init__(
        self, config: BrokerConfig, guard: AccessState | None, rarely: RateLimitedLog
    ) -> None:
        self._allowed = addresses_of(config.ha_allowed_addresses)
        self._guard = guard
        self._rarely = rarely

    def may_follow(self, host: str) -> bool:
        """Return whether a slave at this host may connect; log if not (docs/security.md, H16)."""
        if self._is_known(host):
            return True
        self._rarely.warn("slave address rejected", names=[host])
        return False

    def may_stay(self, host: str) -> bool:
        """Return whether a connected slave may stay: its account or address may have gone."""
        return self._is_known(host, follows=True)

    def _is_known(self, host: str, *, follows: bool = False) -> bool:
        if self._allowed:
            try:
                return ip_address(host) in self._allowed
            except ValueError:
                return False
        return self._guard is None or self._guard.may_replicate(host, follows=follows)
