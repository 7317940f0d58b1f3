"""The addresses of slaves that may follow: who connects gets the log, and may say that it has it.

A plain class, asked on the loop: by HaMaster, and by the entrance where the port speaks TLS, for
strangers are turned away before they cost a handshake.
"""

from collections.abc import Callable
from ipaddress import ip_address

from structlog import get_logger

from actors.access.guard import Guard
from actors.config import BrokerConfig
from actors.settings.access_settings import addresses_of

log = get_logger(__name__)

LOG_STRANGERS_MS = 60_000
STRANGERS_MAX = 1000


class Followers:
    """The addresses of `haAllowedAddresses`, or else those that access control lets in."""

    def __init__(
        self, config: BrokerConfig, guard: Guard | None, now_ms: Callable[[], float]
    ) -> None:
        self._allowed = addresses_of(config.ha_allowed_addresses)
        self._guard = guard
        self._now_ms = now_ms
        self._turned_away: dict[str, float] = {}

    def may_follow(self, host: str) -> bool:
        """Whether it may (H16 of docs/security.md); the log says once a minute who may not."""
        if self._is_known(host):
            return True
        now_ms = self._now_ms()
        if now_ms - self._turned_away.get(host, -LOG_STRANGERS_MS) >= LOG_STRANGERS_MS:
            if len(self._turned_away) >= STRANGERS_MAX:
                self._turned_away.clear()
            self._turned_away[host] = now_ms
            log.warning("no slave is allowed from there", address=host)
        return False

    def _is_known(self, host: str) -> bool:
        if self._allowed:
            try:
                return ip_address(host) in self._allowed
            except ValueError:
                return False
        return self._guard is None or self._guard.may_replicate(host)
