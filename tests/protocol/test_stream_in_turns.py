"""A stream that gives a few events at a time says the same as one that gives all at once."""

from collections.abc import Iterable, Iterator

import pytest

from protocol.codes import RequestCode, SerializeType
from protocol.errors import FrameError
from protocol.frame import FRAME_BYTES_MAX
from protocol.send_wire import SendDecoder
from protocol.stream import Event, SendGroup, Stream
from tests.protocol.test_stream import MIXED, Said, general, said, said_of


def calls(pieces: Iterable[bytes], events_max: int) -> Iterator[list[Event]]:
    """Request events as a connection does, until no frame is left; then read on."""
    stream = Stream(FRAME_BYTES_MAX, SendDecoder(), events_max)
    for piece in pieces:
        yield stream.receive(piece)
        while stream.has_more:
            assert not stream.half_bytes
            yield stream.more()


def said_a_few_at_a_time(pieces: Iterable[bytes], events_max: int) -> Said:
    answers = [*calls(pieces, events_max)]
    for events in answers:
        few = [each for each in events if not isinstance(each, SendGroup | FrameError)]
        assert len(few) <= events_max
    return said(answers)


@pytest.mark.parametrize("events_max", [1, 4])
@pytest.mark.parametrize("piece_bytes", [7, 1000, 1 << 20])
@pytest.mark.parametrize("end", [b"", MIXED[0][:9], bytes(8)], ids=["whole", "half", "broken"])
def test_events_in_small_portions_are_the_same(
    events_max: int, piece_bytes: int, end: bytes
) -> None:
    wire = b"".join(MIXED) + end
    pieces = [wire[at : at + piece_bytes] for at in range(0, len(wire), piece_bytes)]
    found = said_a_few_at_a_time(pieces, events_max)
    assert found == said_of([wire])
    assert (found.error is not None) == (end == bytes(8))


def test_four_end_requests_count_as_one_event() -> None:
    frame = general(SerializeType.JSON, code=RequestCode.END_TRANSACTION)
    stream = Stream(events_max=2)
    assert [len(stream.receive(frame * 20)), *(len(stream.more()) for _ in range(2))] == [8, 8, 4]


def test_undecoded_frames_are_dropped_with_the_rest() -> None:
    stream = Stream(events_max=1)
    assert len(stream.receive(general(SerializeType.JSON) * 3)) == 1
    stream.clear()
    assert not stream.has_more
    assert stream.more() == []
