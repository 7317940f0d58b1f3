"""Counts of one topic or one group: written by one actor, read by whoever reports."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Since the start."""

    count: int = 0
    """Messages."""
    bytes: int = 0
    times: int = 0
    """Requests: a batch is one."""
