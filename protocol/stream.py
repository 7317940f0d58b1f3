"""Streams of frames: bytes of one connection in, events out; without socket or clock.

    for event in stream.receive(data): ...

A frame (layout: protocol/frame.py) may arrive in any pieces. Whole frames are decoded at once,
incomplete ones are kept. A server's stream recognises usual sends and ends of transactions by their
bytes (send_wire.py, end_wire.py); the general decoder handles all others. Events keep the order of
the stream, except that all sends of one call form one last event. So a hundred sends of one read
cost a server one message. A call may return few events; `more` continues with the remaining bytes,
so that a read full of requests does not block the loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from protocol.codes import RequestCode, ResponseCode, SerializeType
from protocol.errors import FrameError, FrameTooLong, RemoteError
from protocol.frame import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    RemotingCommand,
    SlowHeader,
    decode_frame,
)

if TYPE_CHECKING:  # not imported by Spark tasks, which read answers only: 10 ms
    from protocol.end_wire import DecodedEnd, EndDecoder
    from protocol.send_values import Send
    from protocol.send_wire import SendDecoder

_HEAD: Final = Struct(
    ">i"  # bytes after this field
    "I"  # serialise type in the high byte, header bytes in the low three
)
_HEAD_BYTES: Final = _HEAD.size
_LENGTH_BYTES: Final = 4
_SHORT_PIECE_BYTES: Final = 4096
_LONG_FRAME_BYTES: Final = 256 << 10
"""Minimum size of a frame that is cut out without a copy, which takes 1.2 ms for 10 MiB."""
_NO_LIMIT: Final = 1 << 62
assert _HEAD_BYTES == 8
_JSON, _ROCKETMQ = int(SerializeType.JSON), int(SerializeType.ROCKETMQ)


@dataclass(slots=True, eq=False)
class SendGroup:
    """All sends that one call completed, in order."""

    sends: "list[Send]"
    frame_bytes: int
    """Bytes of all their frames."""


@dataclass(slots=True, eq=False)
class UnreadableSend:
    """A send without a mandatory field, and the error that answers it."""

    command: RemotingCommand
    error: RemoteError


ENDS_OF_EVENT: Final = 4
"""Ends of transactions that count as one event where a call returns few."""
HEAVY_EVENT: Final = 64
"""Weight of a request that may take milliseconds, so that it ends a call that returns few."""
_END: Final = int(RequestCode.END_TRANSACTION)
_LIGHT: Final = frozenset(
    code.value
    for code in (
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.RECALL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.QUERY_DATA_VERSION,
    )
)
"""Requests that take tenths of a millisecond of the loop at most, if their headers are short."""
LIGHT_HEADER_BYTES_MAX: Final = 8 << 10
"""Longest header of a light request: the 64 KiB of tags that a pull may have take 10 ms."""

Event: TypeAlias = "SendGroup | DecodedEnd | RemotingCommand | UnreadableSend | FrameError"
"""An event. A command is another request, or a response.

A FrameError is the last event: the bytes behind it are unreliable.
"""


class Stream:
    """Decoder of one peer's bytes, with its incomplete frame and learnt headers."""

    __slots__ = (
        "_ends",
        "_events_max",
        "_parts",
        "_rest",
        "_rest_at",
        "_sends",
        "frame_bytes_max",
        "half_bytes",
        "has_more",
        "heavy_bytes",
        "heavy_code",
        "wanted_bytes",
        "weight",
    )

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        sends: "SendDecoder | None" = None,
        events_max: int = _NO_LIMIT,
        ends: "EndDecoder | None" = None,
    ) -> None:
        """Create a stream. Without a decoder, sends or ends are plain commands.

        `events_max` limits the events of one call, sends not counted.
        """
        self.frame_bytes_max = frame_bytes_max
        """Maximum frame, length field included.

        It may change at any time and applies to later heads.
        """
        self._sends, self._ends = sends, ends
        self._events_max = events_max
        self._rest = b""
        """Received bytes; those from `_rest_at` on are undecoded if `has_more`."""
        self._rest_at = 0
        self.has_more = False
        """Whether received bytes are left to decode."""
        self.heavy_bytes = 0
        """Bytes of the last event's frame if it is a request that may take milliseconds."""
        self.heavy_code = 0
        """Code of that request."""
        self.weight = 0
        """Weight of the last call's events, sends not counted; a request has ENDS_OF_EVENT."""
        self._parts: list[bytes | bytearray] = []
        self.half_bytes = 0
        """Bytes of the incomplete frame."""
        self.wanted_bytes = _HEAD_BYTES
        """Total bytes of the incomplete frame, as far as known."""

    def receive(self, data: bytes) -> list[Event]:
        """Add `data`; return the whole events. Do not call while `has_more`."""
        assert not self.has_more
        if self._parts:
            self.half_bytes += len(data)
            if len(data) < _SHORT_PIECE_BYTES:
                self._add_short(data)
            else:
                self._parts.append(data)
            if self.half_bytes < self.wanted_bytes:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
        return self._cut(data, 0, self._events_max, is_quick=self._events_max < _NO_LIMIT)

    def more(self, events_max: int = _NO_LIMIT) -> list[Event]:
        """Return further events of the added data, at most `events_max`."""
        if not self.has_more:
            return []
        data, self._rest, self.has_more = self._rest, b"", False
        return self._cut(data, self._rest_at, min(events_max, self._events_max))

    def _cut(
        self, data: bytes, position: int, events_max: int, *, is_quick: bool = False
    ) -> list[Event]:
        """Return the events from `position` on, if `is_quick` up to a header that takes long."""
        events: list[Event] = []
        sends: list[Send] = []
        weight, weight_max = 0, events_max * ENDS_OF_EVENT
        broken: FrameError | None = None
        size, sends_bytes, self.heavy_bytes = len(data), 0, 0
        need, decoder, most = 8, self._sends, self.frame_bytes_max
        try:
            while size - position >= 8:
                total, mark = _HEAD.unpack_from(data, position)
                start, end = position + 8, position + 4 + total
                header_end = start + (mark & 0xFFFFFF)
                if total < 4 or header_end > end or total + 4 > most:
                    raise self._refusal(total, mark)
                if end > size:
                    if header_end - start > HEADER_BYTES_MAX:
                        raise self._refusal(total, mark)
                    need = end - position
                    break
                send = None
                if decoder is not None:
                    if mark >> 24 == _ROCKETMQ:
                        if data.startswith(decoder.BINARY_HEADS, start):
                            send = decoder.binary(data, start, header_end, end)
                    elif mark >> 24 == _JSON and data.startswith(decoder.JSON_HEADS, start):
                        send = decoder.json(data, start, header_end, end)
                if send is None:
                    send = self._other(data, start, header_end, end, events, is_quick)
                    is_quick = self._events_max < _NO_LIMIT
                if send is not None:
                    sends.append(send)
                    sends_bytes += end - position
                else:
                    last = events[-1]
                    weight += (added := _weight(last, header_end - start))
                    if added == HEAVY_EVENT and isinstance(last, RemotingCommand):
                        self.heavy_bytes, self.heavy_code = end - position, last.code
                    if weight >= weight_max and end < size:
                        self._rest, self._rest_at, self.has_more = data, end, True
                        break
                position = end
        except SlowHeader:
            self._rest, self._rest_at, self.has_more = data, position, True
        except FrameError as error:
            broken = error
        if position < size and not self.has_more:
            self.half_bytes = size - position
            self._parts.append(data[position:])
            self.wanted_bytes = need
        else:
            self.half_bytes = 0
        self.weight = weight
        if sends:
            events.append(SendGroup(sends, sends_bytes))
        if broken is not None:
            events.append(broken)
        return events

    def _add_short(self, data: bytes) -> None:
        """Join short pieces in one buffer.

        Objects for two bytes each would take 24 times as much.
        """
        last = self._parts[-1]
        if isinstance(last, bytearray):
            last += data
        else:
            self._parts.append(bytearray(data))

    def clear(self) -> None:
        """Discard the received bytes at the end of a connection."""
        self._parts.clear()
        self._rest, self.has_more = b"", False
        self.half_bytes = 0

    def _refusal(self, total: int, mark: int) -> FrameError:
        remark = f"a frame of {total} bytes with a header of {mark & 0xFFFFFF}"
        if total + _LENGTH_BYTES > self.frame_bytes_max:
            return FrameTooLong(ResponseCode.SYSTEM_ERROR, remark, total + _LENGTH_BYTES)
        return FrameError(ResponseCode.SYSTEM_ERROR, remark)

    def _other(
        self,
        data: bytes,
        start: int,
        header_end: int,
        end: int,
        events: list[Event],
        is_quick: bool,
    ) -> "Send | None":
        """Add the event of an unusual frame; return the send if it is one.

        Raises SlowHeader, if `is_quick`, for a header that takes long.
        """
        if is_quick and header_end - start > LIGHT_HEADER_BYTES_MAX:
            raise SlowHeader
        ends = self._ends
        if (
            ends is not None
            and header_end == end
            and data.startswith(ends.HEAD, start)
            and data[start - 4] == _ROCKETMQ
            and (known := ends.decode(data, start, end)) is not None
        ):
            events.append(known)
            return None
        if end - start < _LONG_FRAME_BYTES:
            command = decode_frame(data[start - 4 : end], quick_only=is_quick)
        else:
            command = decode_frame(memoryview(data)[start - 4 : end], quick_only=is_quick)
        if (
            self._sends is not None
            and command.code in self._sends.CODES
            and not command.is_response
        ):
            try:
                return self._sends.general(command)
            except RemoteError as error:
                events.append(UnreadableSend(command, error))
        else:
            events.append(command)
        return None


class CommandStream:
    """Decoder of a server's bytes: answers and few requests, each frame by itself."""

    __slots__ = ("_stream",)

    def __init__(self, answers_max: int = _NO_LIMIT) -> None:
        """`answers_max` limits the answers of one call; a request counts as 16 of them."""
        self._stream = Stream(events_max=answers_max)

    @property
    def has_more(self) -> bool:
        """Whether received bytes are left to decode: call `more`, not `receive`."""
        return self._stream.has_more

    def receive(self, data: bytes) -> Iterator[RemotingCommand]:
        """Add `data`; yield each whole command.

        Raises FrameError behind these at an invalid frame: close the connection then.
        """
        return _commands(self._stream.receive(data))

    def more(self) -> Iterator[RemotingCommand]:
        """Yield further commands of the added data, as `receive`."""
        return _commands(self._stream.more())


def _weight(event: Event, header_bytes: int) -> int:
    """Return the weight of an event where a call returns few; an end of a transaction has 1."""
    if isinstance(event, tuple):
        return 1
    if not isinstance(event, RemotingCommand) or event.is_response:
        return ENDS_OF_EVENT
    if event.code == _END:
        return 1
    is_light = event.code in _LIGHT and header_bytes <= LIGHT_HEADER_BYTES_MAX
    return ENDS_OF_EVENT if is_light else HEAVY_EVENT


def _commands(events: list[Event]) -> Iterator[RemotingCommand]:
    for event in events:
        if isinstance(event, RemotingCommand):
            yield event
        elif isinstance(event, FrameTooLong):
            remark = _other_protocol(event.frame_bytes - _LENGTH_BYTES) or (
                f"a frame of {event.frame_bytes} bytes; at most {FRAME_BYTES_MAX}"
            )
            raise FrameTooLong(event.code, f"decode error: {remark}", event.frame_bytes)
        elif isinstance(event, FrameError):
            raise event


def _other_protocol(length: int) -> str:
    """Return what a frame's length tells of a peer with another protocol; empty if nothing."""
    text = length.to_bytes(_LENGTH_BYTES, "big").decode("latin-1")
    if not (text.isascii() and text.isprintable()):
        return ""
    return f"it speaks another protocol, for its answer begins with {text!r}: check the port"
