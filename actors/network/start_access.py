"""Access as a server starts: its accounts are read, and a port without any is warned of."""

from structlog import get_logger

from actors.access.acl_store import AclStore
from actors.config import BrokerConfig, NamesrvConfig
from actors.engine.system import ActorSystem
from actors.network.limits import is_loopback
from actors.settings.access_settings import AccessSettings
from actors.settings.tls_settings import DISABLED, PERMISSIVE

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


def warn_if_plain_needs_no_certificate(config: BrokerConfig | NamesrvConfig) -> None:
    """A certificate that everybody must show is asked of those who speak TLS, as in 4.9.7; who may
    come without TLS shows none."""
    if config.tls_client_auth != "require" or config.tls_test_mode:
        return
    modes = {"tls.server.mode": config.tls_mode == PERMISSIVE}
    if isinstance(config, BrokerConfig) and not config.is_slave:
        mode, has_others = config.tls_ha_mode, config.acl_enable or config.ha_allowed_addresses
        modes["tls.ha.mode"] = mode == PERMISSIVE or (mode == DISABLED and not has_others)
    for name, lets_in in modes.items():
        if lets_in:
            port = "of replication" if name == "tls.ha.mode" else "for clients"
            log.warning(
                f"whoever comes without TLS needs no certificate at the port {port}: set"
                f" {name}=enforcing",
                because="tls.server.need.client.auth=require",
            )


def _is_here(address: str) -> bool:
    return is_loopback(address) or address == "localhost"
