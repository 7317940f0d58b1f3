"""Settings of access control for brokers and name servers.

A broker signs its requests to name servers and to its master with its own account. That account
comes from the settings file or the environment, never from the command line, which every user of
the machine can read.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.signature import Credentials
from storage.access import account
from storage.access.addresses import Addresses, parse_addresses
from storage.config import key
from storage.errors import WrongSetting

PLAIN_ACL = "plain_acl.yml"
BROKER_ACCESS_KEY, BROKER_SECRET_KEY = "brokerAccessKey", "brokerSecretKey"
_FROM_ENVIRONMENT = {
    BROKER_ACCESS_KEY: account.BROKER_ACCESS_KEY,
    BROKER_SECRET_KEY: account.BROKER_SECRET_KEY,
}


@dataclass(frozen=True)
class AccessSettings:
    """Whether access control is on, and the location of its files."""

    acl_enable: bool = key("aclEnable", default=False)
    acl_file: str = key("rocketmq.acl.plain.file", default="")
    """Default account file; empty: plain_acl.yml beside the settings file or in ROCKETMQ_HOME/conf.

    The first existing one counts. More files are in the folder acl beside it.
    """
    takes_samples: bool = key("aclAllowSampleCredentials", default=False)
    """Whether RocketMQ's sample accounts may be used; their secrets are public."""
    is_white_admin: bool = key("aclWhiteListAdmin", default=False)
    """Whether allowlisted addresses may administer, as in 4.9.7."""
    admin_allowed_addresses: str = key("adminAllowedAddresses", default="")
    """Addresses that may administer at all, with or without access control; empty: all.

    They have the forms of plain_acl.yml, separated by `;`.
    """
    connections_max: int = key("maxConnections", default=0)
    """Maximum connections from other machines; 0: as the limit of open files allows."""
    connections_of_address_max: int = key("maxConnectionsPerAddress", default=0)
    """Maximum connections per address; 0: no limit."""

    def __post_init__(self) -> None:
        addresses_of(self.admin_allowed_addresses)
        for name, value in (
            ("maxConnections", self.connections_max),
            ("maxConnectionsPerAddress", self.connections_of_address_max),
        ):
            if value < 0:
                raise WrongSetting(f"{name} is {value}: it must be 0, for none, or greater.")

    @property
    def admin_allowed(self) -> Addresses | None:
        """Addresses that may administer; None: all."""
        return addresses_of(self.admin_allowed_addresses) or None

    def acl_path(self, settings_path: str) -> str:
        """Return the path of the default file: the first existing place, else the first place.

        Raises WrongSetting if there is no place.
        """
        if self.acl_file:
            return os.path.abspath(self.acl_file)
        places = []
        if settings_path:
            places.append(f"{os.path.dirname(settings_path)}/{PLAIN_ACL}")
        if home := os.environ.get("ROCKETMQ_HOME"):
            places.append(f"{os.path.abspath(home)}/conf/{PLAIN_ACL}")
        for place in places:
            if os.path.lexists(place):  # an unreadable file is reported when it is read
                return place
        if places:
            return places[0]
        raise WrongSetting(
            "aclEnable is true, but the account file is unknown: set rocketmq.acl.plain.file,"
            " or start with a settings file (-c) and put plain_acl.yml beside it."
        )


@dataclass(frozen=True)
class BrokerAccessSettings(AccessSettings):
    broker_access_key: str = key(BROKER_ACCESS_KEY, default="")
    broker_secret_key: str = key(BROKER_SECRET_KEY, default="", secret=True)
    ha_allowed_addresses: str = key("haAllowedAddresses", default="")
    """Addresses of slaves that may connect, in the forms of plain_acl.yml, separated by `;`.

    If empty, with access control: addresses from which a broker's account has requested tables,
    and allowlisted ones; without: all.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        addresses_of(self.ha_allowed_addresses)
        if bool(self.broker_access_key) != bool(self.broker_secret_key):
            raise WrongSetting(f"{BROKER_ACCESS_KEY} and {BROKER_SECRET_KEY} belong together.")

    @property
    def credentials(self) -> Credentials | None:
        if not self.broker_access_key:
            return None
        return Credentials(self.broker_access_key, self.broker_secret_key)


def addresses_of(text: str) -> Addresses:
    """Return the addresses of a setting, separated by `;`. Raises WrongSetting."""
    return parse_addresses(*(part.strip() for part in text.split(";")))


def with_environment(values: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the settings, with the account of the environment unless the file has one.

    Raises WrongSetting for an account on the command line.
    """
    for name, variable in _FROM_ENVIRONMENT.items():
        if name in overrides:
            raise WrongSetting(
                f"{name} is set on the command line, which any user can read: set it"
                f" in the settings file, or in {variable}."
            )
    found = {
        name: os.environ[variable]
        for name, variable in _FROM_ENVIRONMENT.items()
        if variable in os.environ
    }
    return {**found, **values}
