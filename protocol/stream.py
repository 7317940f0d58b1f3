"""Streams of frames: bytes of one connection in, events out; without socket or clock.

    for event in stream.receive(data): ...

A frame (layout: protocol/frame.py) may arrive in any pieces. Whole frames are decoded at once,
incomplete ones are kept. A server's stream recognises usual sends and ends of transactions by their
bytes (send_wire.py, EndDecoder); the general decoder handles all others. Events keep the order of
the stream, except that all sends of one call form one last event. So a hundred sends of one read
cost a server one message. A call may return few events; `more` continues with the remaining bytes,
so that a read full of requests does not block the loop.

The ends of one producer's transactions have the same fields in the same order, and mostly of the
same lengths. So a header is cut at once by the layout of an earlier one with as many bytes. Names
and lengths are compared, values are taken over. A header of any other form is left to the general
decoder.

Source: common/protocol/header/EndTransactionRequestHeader.java.
"""

from collections.abc import Callable, Iterator
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

from protocol.codes import RequestCode, ResponseCode, SerializeType
from protocol.errors import FrameError, FrameTooLong, RemoteError
from protocol.frame import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    RESPONSE_FLAG,
    RemotingCommand,
    decode_binary_header,
    decode_frame,
    encode_binary_header,
)
from protocol.headers.send import EndTransactionHeader

if TYPE_CHECKING:
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


class SendGroup(NamedTuple):
    """All sends that one call completed, in order."""

    sends: "list[Send]"
    frame_bytes: int
    """Bytes of all their frames."""


class UnreadableSend(NamedTuple):
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
        "wanted_bytes",
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
        return self._cut(data, 0, self._events_max)

    def more(self, events_max: int = _NO_LIMIT) -> list[Event]:
        """Return further events of the added data, at most `events_max`."""
        if not self.has_more:
            return []
        data, self._rest, self.has_more = self._rest, b"", False
        return self._cut(data, self._rest_at, min(events_max, self._events_max))

    def _cut(self, data: bytes, position: int, events_max: int) -> list[Event]:
        events: list[Event] = []
        sends: list[Send] = []
        left = events_max * ENDS_OF_EVENT
        broken: FrameError | None = None
        size, sends_bytes = len(data), 0
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
                    send = self._other(data, start, header_end, end, events)
                if send is not None:
                    sends.append(send)
                    sends_bytes += end - position
                else:
                    last = events[-1]
                    left -= _weight(last, header_end - start)
                    if left <= 0 and end < size:
                        self._rest, self._rest_at, self.has_more = data, end, True
                        break
                position = end
        except FrameError as error:
            broken = error
        if position < size and not self.has_more:
            self.half_bytes = size - position
            self._parts.append(data[position:])
            self.wanted_bytes = need
        else:
            self.half_bytes = 0
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
        self, data: bytes, start: int, header_end: int, end: int, events: list[Event]
    ) -> "Send | None":
        """Add the event of an unusual frame; return the send if it is one."""
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
            command = decode_frame(data[start - 4 : end])
        else:
            command = decode_frame(memoryview(data)[start - 4 : end])
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

    def __init__(self) -> None:
        self._stream = Stream()

    def receive(self, data: bytes) -> Iterator[RemotingCommand]:
        """Add `data`; yield each whole command.

        Raises FrameError behind these at an invalid frame: close the connection then.
        """
        return _commands(self._stream.receive(data))


def _weight(event: Event, header_bytes: int) -> int:
    """Return the weight of an event where a call returns few; an end of a transaction has 1."""
    if isinstance(event, DecodedEnd):
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
            remark = f"a frame of {event.frame_bytes} bytes; at most {FRAME_BYTES_MAX}"
            raise FrameTooLong(event.code, f"decode error: {remark}", event.frame_bytes)
        elif isinstance(event, FrameError):
            raise event


_CODE: Final = int(RequestCode.END_TRANSACTION)
_FIXED: Final = ">2xbhii8s0s"
"""Language, version, opaque, flag; lengths of remark and fields, which are compared."""
_FIRST_COMPARED, _FIRST_VALUE = 4, 7
_OUTCOMES: Final = {b"0": 0, b"8": 8, b"12": 12}
_NUMBERS: Final = ("tranStateTableOffset", "commitLogOffset")
_MANDATORY: Final = ("producerGroup", *_NUMBERS, "commitOrRollback")
_NAMES: Final = (*_MANDATORY, "msgId", "fromTransactionCheck", "transactionId", "bname")
_LONG_DIGITS: Final = 18
"""Maximum digits of a number that fits in any case."""
_LAYOUTS_MAX, _HEADER_BYTES_MAX = 16, 1024
_LEARNT_OF: Final = 16
"""Learn one of this many unknown headers, since that takes 20 µs."""


class DecodedEnd(NamedTuple):
    """Request to end a transaction: a command without fields, and its decoded header."""

    command: RemotingCommand
    header: EndTransactionHeader


class _Layout(NamedTuple):
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    """Return the values of the head, then what is compared and a value in turn, then b""."""
    compared: tuple[bytes, ...]
    pick: Callable[[tuple[Any, ...]], tuple[bytes, ...]]
    """Return the values in the order of _NAMES, b"" if missing."""


class EndDecoder:
    """Decoder of the ends of transactions of one connection, by layouts of earlier ones."""

    __slots__ = ("_layouts", "_unknown")
    HEAD: ClassVar = _CODE.to_bytes(2)
    """First bytes of the binary header."""

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}
        """Layouts by header length in bytes."""
        self._unknown = 0

    def decode(self, data: bytes, start: int, end: int) -> DecodedEnd | None:
        """Decode the binary header at `start`; return None for an unknown layout."""
        layout = self._layouts.get(end - start)
        found = None if layout is None else _found(layout, data, start)
        if found is None:
            self._unknown += 1
            if self._unknown % _LEARNT_OF == 1 and end - start <= _HEADER_BYTES_MAX:
                self._learn(data[start:end])
        return found

    def _learn(self, header: bytes) -> None:
        """Learn the layout of this header, unless it is irregular."""
        try:
            command = decode_binary_header(header)
        except FrameError:
            return
        fields = command.fields or {}
        if encode_binary_header(command) != header or not fields.keys() >= {*_MANDATORY}:
            return
        if command.remark or any(len(fields[name]) > _LONG_DIGITS for name in _NUMBERS):
            return
        sizes = [(len(name.encode()) + 6, len(text.encode())) for name, text in fields.items()]
        layout = Struct(_FIXED + "".join([f"{name}s{text}s" for name, text in sizes]) + "0s")
        places = {name: _FIRST_VALUE + 2 * at for at, name in enumerate(fields)}
        pick = itemgetter(*[places.get(name, -1) for name in _NAMES])
        compared = layout.unpack(header)[_FIRST_COMPARED::2]
        if len(self._layouts) >= _LAYOUTS_MAX:
            self._layouts.clear()
        self._layouts[len(header)] = _Layout(layout.unpack_from, compared, pick)


def _found(layout: _Layout, data: bytes, start: int) -> DecodedEnd | None:
    found = layout.unpack(data, start)
    language, version, opaque, flag = found[:_FIRST_COMPARED]
    group, table, offset, verdict, msg_id, is_check, transaction, broker = layout.pick(found)
    outcome = _OUTCOMES.get(verdict)
    if (
        found[_FIRST_COMPARED::2] != layout.compared
        or outcome is None
        or flag & RESPONSE_FLAG
        or not (table.isdigit() and offset.isdigit())
    ):
        return None
    header = EndTransactionHeader(
        group.decode("utf-8", "replace"),
        int(table),
        int(offset),
        outcome,
        msg_id.decode("utf-8", "replace") if msg_id else None,
        is_check.lower() == b"true",
        transaction.decode("utf-8", "replace") if transaction else None,
        broker.decode("utf-8", "replace") if broker else None,
    )
    command = RemotingCommand(_CODE, None, None, opaque, flag, None, language, version, _ROCKETMQ)
    return DecodedEnd(command, header)
