"""A finding of a start, or of a check of a store."""

from typing import NamedTuple


class Finding(NamedTuple):
    """Something wrong, or (a note) something that an operator may want to know."""

    part: str
    """One of: commit log, consume queues, index, checkpoint, config, transaction table, store."""
    text: str
    is_wrong: bool = True
