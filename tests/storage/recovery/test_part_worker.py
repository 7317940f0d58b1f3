"""Workers read every n-th stretch each; what they find goes through a pipe unchanged."""

import json
from io import BytesIO

import pytest

from storage.recovery.log_chunks import PartOrder, ReadPart
from storage.recovery.part_worker import argument, packed, parts, read_packed
from tests.support.store import SmallStore

PART_BYTES = 1500


def test_a_part_is_unchanged_after_a_pipe() -> None:
    small = SmallStore()
    small.send(30)
    whole = [part for part in of_workers(small, 1, small.log.end_offset)[0] if part is not None]
    pipe = BytesIO(b"".join(map(packed, [whole[0], None, whole[1]])))
    assert [read_packed(pipe.read, ReadPart) for _ in range(3)] == [whole[0], None, whole[1]]
    with pytest.raises(EOFError):
        read_packed(pipe.read, ReadPart)


def test_a_truncated_part_is_refused() -> None:
    with pytest.raises(EOFError):
        read_packed(BytesIO(packed(ReadPart(0, 9, 1, 2, 3, []))[:-1]).read, ReadPart)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_parallel_workers_together_read_every_record(workers: int) -> None:
    small = SmallStore()
    small.send(150)
    end = small.log.queue.capacity_end
    found = of_workers(small, workers, end)
    kept = {part.start: part for each in found for part in each if part is not None}
    heads = list(small.log.walk(0))
    covered = [
        head
        for head in heads
        if any(part.start <= head.physical_offset < part.end for part in kept.values())
    ]
    assert sum(part.record_count for part in kept.values()) == len(covered) > 130
    assert all(head.physical_offset < PART_BYTES for head in heads if head not in covered)


def of_workers(small: SmallStore, workers: int, end: int) -> list[list[ReadPart | None]]:
    order = PartOrder("/store/commitlog", 8192, 0, end, True, 0, (), part_bytes=PART_BYTES)
    found: list[list[ReadPart | None]] = []
    for number in range(workers):
        given = json.loads(argument(order, 0, number, workers))
        found.append([])
        for part in parts(small.disk, given):
            assert part is None or isinstance(part, ReadPart)
            found[-1].append(part)
    return found
