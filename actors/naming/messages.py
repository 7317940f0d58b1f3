"""News of Registration for the actors of a slave: the addresses of its master."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MasterHaAddress:
    """Told to HaSlave: the HA port of the master, as the name server says."""

    address: str


@dataclass(frozen=True, slots=True)
class MasterClientAddress:
    """Told to SlaveSync: the master's port for clients; None: none is registered now."""

    address: str | None
