"""Limits and result of a get."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from storage.config import StoreConfig
from storage.dispatching.dispatch import delay_levels_ms
from storage.reading.page_probe import ColdPart


class GetStatus(Enum):
    """Outcome of a get; the names go into response remarks."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"

    IN_DOUBT = "IN_DOUBT"
    """Internal: the first unit and its record disagree. Verify it, then repeat the get."""
    COLD = "COLD"
    """Internal: bytes to read are not in memory. Read them, then repeat the get."""


class ReadableLog(Protocol):
    """Access to the commit log."""

    @property
    def end_offset(self) -> int: ...

    def min_offset(self) -> int: ...

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes of the log. Raises OffsetError unless all lie in one existing file."""


@dataclass(frozen=True, slots=True)
class GetLimits:
    """Limits of one get, and the size of the part that counts as cached."""

    in_memory_bytes: int
    """Bytes before the log's end that count as in memory; earlier ones count as on disk."""
    log_file_bytes: int
    memory_bytes_max: int = 256 << 10
    memory_count_max: int = 32
    disk_bytes_max: int = 64 << 10
    disk_count_max: int = 8
    correct_offsets: bool = True
    """Whether to correct offsets; False on a slave without offset checks."""
    delay_levels: Sequence[int] = ()
    """Delays in ms, level 1 first; they determine the tags codes of delayed messages."""

    @classmethod
    def of(cls, config: StoreConfig, machine_bytes: int, correct_offsets: bool) -> "GetLimits":
        """Return limits from the settings and the machine's physical memory."""
        return cls(
            in_memory_bytes=machine_bytes * config.access_in_memory_max_ratio // 100,
            log_file_bytes=config.commit_log_file_bytes,
            memory_bytes_max=config.max_transfer_bytes_in_memory,
            memory_count_max=config.max_transfer_count_in_memory,
            disk_bytes_max=config.max_transfer_bytes_on_disk,
            disk_count_max=config.max_transfer_count_on_disk,
            correct_offsets=correct_offsets,
            delay_levels=delay_levels_ms(config.message_delay_level),
        )

    def renewed(self, config: StoreConfig) -> "GetLimits":
        """Return the limits with the current values of the reloadable settings."""
        return replace(
            self,
            memory_bytes_max=config.max_transfer_bytes_in_memory,
            memory_count_max=config.max_transfer_count_in_memory,
            disk_bytes_max=config.max_transfer_bytes_on_disk,
            disk_count_max=config.max_transfer_count_on_disk,
        )


@dataclass(slots=True)
class GetResult:
    """Messages found, and the next offset."""

    status: GetStatus
    next_offset: int
    min_offset: int = 0
    max_offset: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    """Log ranges (start, end) of the records; adjacent records share one."""
    span: tuple[int, int] | None = None
    """Part of one log file that contains all runs, if known."""
    views: list[memoryview] = field(default_factory=list)
    count: int = 0
    body_bytes: int = 0
    is_far_behind: bool = False
    """Whether the records no longer count as cached; a slave might serve them better."""
    read_bytes: int = field(default=0, compare=False)
    """Work on records and filters, in bytes; 0 if no record was read."""
    cold: Sequence[ColdPart] = ()
    """Parts to read first, for status COLD."""
