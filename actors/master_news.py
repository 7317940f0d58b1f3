"""What a slave's registration learns of its master, as it tells HaSlave and SlaveSync."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MasterAt:
    """Told to HaSlave: the HA port of the master, as the name server says."""

    address: str


@dataclass(frozen=True, slots=True)
class MasterIs:
    """Told to SlaveSync: the master's port for clients; None: none is registered now."""

    address: str | None
