"""Limits and result of a get."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from storage.config import StoreConfig
from storage.dispatching.dispatch import delay_levels_ms
from storage.reading.page_probe import ColdPart


class GetStatus(Enum):
    """How a get ended; the names are what goes into an answer's remark."""

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
    """Not an answer: the first unit and its record disagree; to be verified, then asked again."""
    COLD = "COLD"
    """Not an answer: what has to be read is not in memory; to be read, then asked again."""


class ReadableLog(Protocol):
    """What is needed of the commit log."""

    @property
    def end_offset(self) -> int: ...

    def min_offset(self) -> int: ...

    def view(self, offset: int, size: int) -> memoryview:
        """Raises OffsetError for what is not, or no longer, in one file of the log."""


@dataclass(frozen=True, slots=True)
class GetLimits:
    """How much one get may take, and what it takes for cached."""

    in_memory_bytes: int
    """Records no further than this behind the log's end count as in memory, others as on disk."""
    log_file_bytes: int
    memory_bytes_max: int = 256 << 10
    memory_count_max: int = 32
    disk_bytes_max: int = 64 << 10
    disk_count_max: int = 8
    correct_offsets: bool = True
    """False on a slave that does not check offsets: a bad one is given back as it came."""
    delay_levels: Sequence[int] = ()
    """ms, level 1 first: what the tags codes of delayed messages are made of."""

    @classmethod
    def of(cls, config: StoreConfig, machine_bytes: int, correct_offsets: bool) -> "GetLimits":
        """Limits from the settings and the machine's physical memory."""
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
        """With the settings as they are now, of those that may change."""
        return replace(
            self,
            memory_bytes_max=config.max_transfer_bytes_in_memory,
            memory_count_max=config.max_transfer_count_in_memory,
            disk_bytes_max=config.max_transfer_bytes_on_disk,
            disk_count_max=config.max_transfer_count_on_disk,
        )


@dataclass(slots=True)
class GetResult:
    """What was found, and where to go on."""

    status: GetStatus
    next_offset: int
    min_offset: int = 0
    max_offset: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    """Where the records lie in the log, (start, end); those behind each other are one run."""
    span: tuple[int, int] | None = None
    """A part of one file of the log that all runs lie in; None where that is not known."""
    views: list[memoryview] = field(default_factory=list)
    """The runs, uncopied."""
    count: int = 0
    body_bytes: int = 0
    """Bytes in all views."""
    is_far_behind: bool = False
    """What was read is no longer taken for cached: a slave might serve it better."""
    cold: Sequence[ColdPart] = ()
    """With status COLD: what has to be read first."""
