"""What a pull gets: the status, the corrected offset, and the records as they lie in the log.

Source: store/DefaultMessageStore.java (getMessage, isTheBatchFull, checkInDiskByCommitOffset).
"""

from collections.abc import Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from storage.config import StoreConfig
from storage.consume_queue import UNIT, ConsumeQueue

EXAMINED_BYTES_MIN = 16_000
"""Units looked at by one call: this many bytes, or 20 for each message asked for if more."""
_UNIT_BYTES = UNIT.size
_CODE_MIN, _CODE_MAX = -(1 << 31), (1 << 31) - 1


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


class LogReader(Protocol):
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
        )


@dataclass(slots=True)
class GetResult:
    """What was found, and where to go on."""

    status: GetStatus
    next_offset: int
    min_offset: int = 0
    max_offset: int = 0
    views: list[memoryview] = field(default_factory=list)
    """The records, uncopied; those that lie behind each other in the log are one view."""
    count: int = 0
    body_bytes: int = 0
    """Bytes in all views."""
    is_far_behind: bool = False
    """What was read is no longer taken for cached: a slave might serve it better."""


def get_message(
    queue: ConsumeQueue | None,
    log: LogReader,
    queue_offset: int,
    max_count: int,
    tag_codes: Set[int] | None,
    limits: GetLimits,
) -> GetResult:
    """The messages of a queue from `queue_offset` on.

    `tag_codes` are signed 32-bit hashes of the tags wanted, None for all. The first message that
    matches is returned whatever its size; the others only within the limits. Never crosses a
    queue file.
    """
    if queue is None:
        return _miss(GetStatus.NO_MATCHED_LOGIC_QUEUE, queue_offset, 0, limits)
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        result = _miss(GetStatus.NO_MESSAGE_IN_QUEUE, queue_offset, 0, limits)
    elif queue_offset < low:
        result = _miss(GetStatus.OFFSET_TOO_SMALL, queue_offset, low, limits)
    elif queue_offset == high:
        result = _miss(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, queue_offset, limits)
    elif queue_offset > high:
        result = _miss(GetStatus.OFFSET_OVERFLOW_BADLY, queue_offset, high, limits)
    else:
        unit_count = max(EXAMINED_BYTES_MIN // _UNIT_BYTES, max_count)
        units = queue.units(queue_offset, unit_count)
        if units:
            result = _collect(units, log, queue_offset, max_count, tag_codes, limits)
        else:
            following = queue.next_file_offset(queue_offset)
            result = _miss(GetStatus.OFFSET_FOUND_NULL, queue_offset, following, limits)
    result.min_offset, result.max_offset = low, high
    return result


def _miss(status: GetStatus, asked: int, corrected: int, limits: GetLimits) -> GetResult:
    return GetResult(status, corrected if limits.correct_offsets else asked)


def _collect(
    units: bytes | bytearray | memoryview,
    log: LogReader,
    queue_offset: int,
    max_count: int,
    tag_codes: Set[int] | None,
    limits: GetLimits,
) -> GetResult:
    """Goes through the units; one pass, no object per message."""
    log_end, log_begin, file_bytes = log.end_offset, log.min_offset(), limits.log_file_bytes
    cached_from = log_end - limits.in_memory_bytes
    count_max, bytes_max = min(max_count, limits.memory_count_max), limits.memory_bytes_max
    status = GetStatus.NO_MATCHED_MESSAGE
    views: list[memoryview] = []
    count = total = run_start = run_end = run_limit = skip_below = physical_offset = examined = 0
    for physical_offset, size, code in UNIT.iter_unpack(units):
        if physical_offset < skip_below:
            examined += 1
            continue
        if count:
            if physical_offset < cached_from:
                if count >= min(max_count, limits.disk_count_max):
                    break
                if total + size > limits.disk_bytes_max:
                    break
            elif count >= count_max or total + size > bytes_max:
                break
        examined += 1
        if tag_codes is not None and code not in tag_codes and not _is_wanted(code, tag_codes):
            status = GetStatus.NO_MATCHED_MESSAGE
            continue
        end = physical_offset + size
        if physical_offset == run_end and end <= run_limit:
            run_end = end
        else:
            file_end = physical_offset + file_bytes - physical_offset % file_bytes
            if physical_offset < log_begin or end > log_end or end > file_end:
                status = GetStatus.MESSAGE_WAS_REMOVING
                skip_below = file_end
                continue
            if run_end > run_start:
                views.append(log.view(run_start, run_end - run_start))
            run_start, run_end, run_limit = physical_offset, end, min(log_end, file_end)
        skip_below = 0
        count += 1
        total += size
    if run_end > run_start:
        views.append(log.view(run_start, run_end - run_start))
    return GetResult(
        GetStatus.FOUND if count else status,
        queue_offset + examined,
        views=views,
        count=count,
        body_bytes=total,
        is_far_behind=physical_offset < cached_from,
    )


def _is_wanted(code: int, tag_codes: Set[int]) -> bool:
    """For a code that is in no set as it stands: an address in an extension file may be any tag

    (the client looks again), and of a due time only the low 32 bits count.
    """
    if code < _CODE_MIN:
        return True
    return code > _CODE_MAX and ((code + (1 << 31)) % (1 << 32)) - (1 << 31) in tag_codes
