"""One thing that a start, or a check of a store, has to say."""

from typing import NamedTuple


class Finding(NamedTuple):
    """Something that is wrong, or (a note) that an operator may want to know."""

    part: str
    """commit log, consume queues, index, checkpoint, config, transaction table, store."""
    text: str
    is_wrong: bool = True
