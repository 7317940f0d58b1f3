"""The addresses of slaves that may follow: who connects gets the log, and may say that it has it.

A plain class, asked on the loop: by HaMaster, and by the entrance where the port speaks TLS, for
strangers are turned away before they cost a handshake.
"""

from ipaddress import ip_address

from actors.access.access_state import AccessState
from actors.config import BrokerConfig
from actors.engine.rate_limited_log import RateLimitedLog
from actors.settings.access_settings import addresses_of


class Followers:
    """The addresses of `haAllowedAddresses`, or else those that access control lets in."""

    def __init__(
        self, config: BrokerConfig, guard: AccessState | None, rarely: RateLimitedLog
    ) -> None:
        self._allowed = addresses_of(config.ha_allowed_addresses)
        self._guard = guard
        self._rarely = rarely

    def may_follow(self, host: str) -> bool:
        """Whether it may (H16 of docs/security.md); the log says who may not."""
        if self._is_known(host):
            return True
        self._rarely.warn("no slave is allowed from there", names=[host])
        return False

    def may_stay(self, host: str) -> bool:
        """Whether one that follows still may: accounts and white addresses may have gone."""
        return self._is_known(host, follows=True)

    def _is_known(self, host: str, *, follows: bool = False) -> bool:
        if self._allowed:
            try:
                return ip_address(host) in self._allowed
            except ValueError:
                return False
        return self._guard is None or self._guard.may_replicate(host, follows=follows)
