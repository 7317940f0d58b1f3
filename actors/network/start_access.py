"""Access control at a server's start: reads its accounts, warns of open ports."""

from actors.access.acl_store import AclStore
from actors.config import BrokerConfig, NamesrvConfig
from actors.engine.server_log import get_logger
from actors.engine.system import ActorSystem
from actors.network.limits import is_loopback
from actors.settings.access_settings import AccessSettings
from actors.settings.tls_settings import DISABLED, PERMISSIVE

log = get_logger(__name__)


def opened_acl(system: ActorSystem, settings: AccessSettings, settings_path: str) -> AclStore:
    """Read the accounts of a server for the first time. Raises StoreError."""
    store = AclStore(
        system.disk,
        settings.acl_path(settings_path),
        system.clock.now_ms,
        takes_samples=settings.takes_samples,
    )
    store.load()
    if settings.is_white_admin:
        log.warning("allowlisted addresses may administer", because="aclWhiteListAdmin=true")
    return store


def warn_if_open(settings: AccessSettings, bind_address: str, ha_address: str = "") -> None:
    """Warn of ports without access control that other machines can reach.

    `ha_address`: address at which a master serves replication without an allowlist; empty: none.
    """
    if settings.acl_enable:
        return
    gives_log = bool(ha_address) and not _is_here(ha_address)
    if not _is_here(bind_address):
        more = " and haAllowedAddresses (the replication port gives every message)"
        log.warning(
            "access control disabled",
            listens_at=bind_address,
            hint="every peer has all permissions: set aclEnable=true"
            " (docs/security.md), bindAddress=127.0.0.1, or adminAllowedAddresses"
            f"{more if gives_log else ''}",
        )
    elif gives_log:
        log.warning(
            "replication access control disabled",
            listens_at=ha_address,
            hint="every peer of the replication port gets every message: set aclEnable=true"
            " (docs/security.md), haBindAddress=127.0.0.1, or haAllowedAddresses",
        )


def warn_if_plain_needs_no_certificate(config: BrokerConfig | NamesrvConfig) -> None:
    """Warn of ports where plain connections bypass a required client certificate.

    As in 4.9.7, only TLS connections must show the certificate.
    """
    if config.tls_client_auth != "require" or config.tls_test_mode:
        return
    modes = {"tls.server.mode": config.tls_mode == PERMISSIVE}
    if isinstance(config, BrokerConfig) and not config.is_slave:
        mode, has_others = config.tls_ha_mode, config.acl_enable or config.ha_allowed_addresses
        modes["tls.ha.mode"] = mode == PERMISSIVE or (mode == DISABLED and not has_others)
    for name, lets_in in modes.items():
        if lets_in:
            port = "replication" if name == "tls.ha.mode" else "clients"
            log.warning(
                "client certificate not required without TLS",
                port=port,
                hint=f"set {name}=enforcing",
                because="tls.server.need.client.auth=require",
            )


def _is_here(address: str) -> bool:
    return is_loopback(address) or address == "localhost"
