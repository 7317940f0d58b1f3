"""News of a slave's log for the actor that fetches its master's tables."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnknownTopics:
    """Told to SlaveSync: the log has messages of topics that are in no table here."""

    topics: Sequence[str]
