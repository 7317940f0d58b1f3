"""What a slave's registration and its log tell of its master, as HaSlave and SlaveSync hear it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MasterAt:
    """Told to HaSlave: the HA port of the master, as the name server says."""

    address: str


@dataclass(frozen=True, slots=True)
class MasterIs:
    """Told to SlaveSync: the master's port for clients; None: none is registered now."""

    address: str | None


@dataclass(frozen=True, slots=True)
class UnknownTopics:
    """Told to SlaveSync: the log has messages of topics that are in no table here."""

    topics: Sequence[str]
