"""Access as a server starts: its accounts are read, and a port without any is warned of."""

from structlog import get_logger

from actors.access.acl_store import AclStore
from actors.engine.system import ActorSystem
from actors.network.limits import is_loopback
from actors.settings.access_settings import AccessSettings

log = get_logger(__name__)


def opened_acl(system: ActorSystem, settings: AccessSettings, settings_path: str) -> AclStore:
    """The accounts of a server, read for the first time. Raises StoreError."""
    store = AclStore(
        system.disk,
        settings.acl_path(settings_path),
        system.clock.now_ms,
        takes_samples=settings.takes_samples,
    )
    store.load()
    if settings.is_white_admin:
        log.warning("white addresses may administer", because="aclWhiteListAdmin=true")
    return store


def warn_if_open(settings: AccessSettings, bind_address: str, ha_address: str = "") -> None:
    """Whoever listens beyond this machine without access control does so knowingly, in one line.

    `ha_address`: where a master gives its log to whoever comes; empty: nowhere.
    """
    if settings.acl_enable:
        return
    gives_log = bool(ha_address) and not _is_here(ha_address)
    if not _is_here(bind_address):
        more = " (and haAllowedAddresses: its port of replication gives every message)"
        log.warning(
            "whoever reaches this port may do everything: set aclEnable=true (docs/security.md), or"
            f" bindAddress=127.0.0.1, or adminAllowedAddresses{more if gives_log else ''}",
            listens_at=bind_address,
        )
    elif gives_log:
        log.warning(
            "whoever reaches the port of replication gets every message: set aclEnable=true"
            " (docs/security.md), or haBindAddress=127.0.0.1, or haAllowedAddresses",
            listens_at=ha_address,
        )


def _is_here(address: str) -> bool:
    return is_loopback(address) or address == "localhost"
