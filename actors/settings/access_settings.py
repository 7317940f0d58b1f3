"""The settings of access control that a broker and a name server share: RocketMQ's keys, and ours.

The account of a broker itself, with which it signs what it asks name servers and its master, comes
from its settings file or from the environment, never from the command line: everybody on the
machine can read that.
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
    """Whether there is access control, and where its files are."""

    acl_enable: bool = key("aclEnable", default=False)
    acl_file: str = key("rocketmq.acl.plain.file", default="")
    """The default file; empty: plain_acl.yml beside the settings file, or, if none lies there, in
    the conf folder of ROCKETMQ_HOME. More files are below the folder acl beside it."""
    takes_samples: bool = key("aclAllowSampleCredentials", default=False)
    """Whether the accounts that come with RocketMQ may be used: everybody knows their secrets."""
    is_white_admin: bool = key("aclWhiteListAdmin", default=False)
    """Whether a white address may administer, as in 4.9.7."""
    admin_allowed_addresses: str = key("adminAllowedAddresses", default="")
    """From where administrators' requests are taken at all, with access control and without, in the
    forms of plain_acl.yml, several with `;` between; empty: from everywhere."""
    connections_max: int = key("maxConnections", default=0)
    """Of clients from other machines. 0: as many as the limit of open files leaves."""
    connections_of_address_max: int = key("maxConnectionsPerAddress", default=0)
    """The same of one address. 0: no limit."""

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
        """From where administrators' requests come; None: from everywhere."""
        return addresses_of(self.admin_allowed_addresses) or None

    def acl_path(self, settings_path: str) -> str:
        """Return where the default file is: the first place that has one, else the first place.

        Raises WrongSetting where there is no place to look at.
        """
        if self.acl_file:
            return os.path.abspath(self.acl_file)
        places = []
        if settings_path:
            places.append(f"{os.path.dirname(settings_path)}/{PLAIN_ACL}")
        if home := os.environ.get("ROCKETMQ_HOME"):
            places.append(f"{os.path.abspath(home)}/conf/{PLAIN_ACL}")
        for place in places:
            if os.path.lexists(place):  # what cannot be read is told when it is read
                return place
        if places:
            return places[0]
        raise WrongSetting(
            "aclEnable is true, and nobody says where the accounts are: name plain_acl.yml as"
            " rocketmq.acl.plain.file, or start with a settings file (-c) and put it beside it."
        )


@dataclass(frozen=True)
class BrokerAccessSettings(AccessSettings):
    """A broker's."""

    broker_access_key: str = key(BROKER_ACCESS_KEY, default="")
    broker_secret_key: str = key(BROKER_SECRET_KEY, default="", secret=True)
    ha_allowed_addresses: str = key("haAllowedAddresses", default="")
    """From where slaves may connect, in the forms of plain_acl.yml, several with `;` between; empty
    with access control: from where a broker's account has asked for tables, and white addresses;
    without: everywhere."""

    def __post_init__(self) -> None:
        super().__post_init__()
        addresses_of(self.ha_allowed_addresses)
        if bool(self.broker_access_key) != bool(self.broker_secret_key):
            raise WrongSetting(f"{BROKER_ACCESS_KEY} and {BROKER_SECRET_KEY} belong together.")

    @property
    def credentials(self) -> Credentials | None:
        """The broker's own account."""
        if not self.broker_access_key:
            return None
        return Credentials(self.broker_access_key, self.broker_secret_key)


def addresses_of(text: str) -> Addresses:
    """Those of a setting: forms of plain_acl.yml with `;` between. Raises WrongSetting."""
    found = Addresses()
    for part in text.split(";"):
        found |= parse_addresses(part.strip())
    return found


def with_environment(values: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """The settings with the account from the environment, where the file names none.

    Raises WrongSetting for a part of it on the command line.
    """
    for name, variable in _FROM_ENVIRONMENT.items():
        if name in overrides:
            raise WrongSetting(
                f"{name} stands on the command line, which everybody can read: write it"
                f" into the settings file, or into {variable}."
            )
    found = {
        name: os.environ[variable]
        for name, variable in _FROM_ENVIRONMENT.items()
        if variable in os.environ
    }
    return {**found, **values}
