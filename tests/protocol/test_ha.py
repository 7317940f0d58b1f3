"""Replication frames: the recorded streams of the original, cut in every way, and bad ones."""

from collections.abc import Callable, Iterator

import pytest

from protocol.errors import FrameError
from protocol.ha import (
    TRANSFER_BYTES_MAX,
    TRANSFER_HEAD_BYTES,
    ReportBuffer,
    Transfer,
    TransferBuffer,
    encode_report,
    encode_transfer_head,
)
from tests.support.by_hand import BY_HAND
from tests.support.golden import replication

STREAMS = (
    "a-fresh-slave",
    "b-reconnect-nonzero-offset",
    "c-wiped-slave-joins-late",
    "d-sync-master-slave-just-started",
    "e-sync-master-ack-and-timeout",
    BY_HAND,
)
TO_MASTER, TO_SLAVE = "slave->master", "master->slave"
Slicing = Callable[[bytes], Iterator[bytes]]


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def single_bytes(data: bytes) -> Iterator[bytes]:
    for number in range(len(data)):
        yield data[number : number + 1]


def with_trailing(data: bytes) -> Iterator[bytes]:
    """All of it and the beginning of what comes next."""
    yield data + b"\0\0\0"


SLICINGS = (whole, single_bytes, with_trailing)


def recorded_bytes(name: str, direction: str) -> bytes:
    chunks = [
        bytes.fromhex(line["hex"])
        for line in replication(name)
        if line["type"] == "bytes" and line["dir"] == direction
    ]
    return b"".join(chunks)


def frames(name: str, direction: str) -> list[dict[str, int]]:
    lines = replication(name)
    return [line for line in lines if line["type"] == "frame" and line["dir"] == direction]


@pytest.mark.parametrize("slicing", SLICINGS)
@pytest.mark.parametrize("name", STREAMS)
def test_recorded_transfers_are_split_as_by_the_original(name: str, slicing: Slicing) -> None:
    stream = recorded_bytes(name, TO_SLAVE)
    buffer = TransferBuffer()
    found: list[Transfer] = []
    for data in slicing(stream):
        found += buffer.receive(data)
    wanted = [(frame["phyOffset"], frame["bodySize"]) for frame in frames(name, TO_SLAVE)]
    assert [(offset, len(body)) for offset, body in found] == wanted
    again = [encode_transfer_head(offset, len(body)) + body for offset, body in found]
    assert b"".join(again) == stream


@pytest.mark.parametrize("slicing", (single_bytes, with_trailing))
@pytest.mark.parametrize("name", STREAMS)
def test_recorded_reports_are_read_and_written(name: str, slicing: Slicing) -> None:
    stream = recorded_bytes(name, TO_MASTER)
    wanted = [frame["reportOffset"] for frame in frames(name, TO_MASTER)]
    assert b"".join(map(encode_report, wanted)) == stream
    buffer = ReportBuffer()
    found = [offset for data in slicing(stream) if (offset := buffer.receive(data)) is not None]
    assert found == (wanted if slicing is single_bytes else wanted[-1:])


def test_the_last_complete_report_of_a_read_counts() -> None:
    buffer = ReportBuffer()
    stream = encode_report(1) + encode_report(2) + encode_report(3)
    assert buffer.receive(stream[:20]) == 2
    assert buffer.receive(stream[20:23]) is None
    assert buffer.receive(stream[23:]) == 3


@pytest.mark.parametrize("body_bytes", (-1, TRANSFER_BYTES_MAX - TRANSFER_HEAD_BYTES + 1))
def test_an_invalid_length_ends_the_stream(body_bytes: int) -> None:
    with pytest.raises(FrameError, match=f"a transfer of {body_bytes} bytes at 7"):
        TransferBuffer().receive(encode_transfer_head(7, body_bytes))


def test_a_negative_offset_ends_the_stream() -> None:
    with pytest.raises(FrameError):
        TransferBuffer().receive(encode_transfer_head(-7, 0))


def test_the_longest_body_is_accepted() -> None:
    body = bytes(TRANSFER_BYTES_MAX - TRANSFER_HEAD_BYTES)
    head = encode_transfer_head(0, len(body))
    assert TransferBuffer().receive(head + body) == [(0, body)]
