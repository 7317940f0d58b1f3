"""A quick decoder of END_TRANSACTION by layouts of earlier binary headers.

The ends of one producer have the same fields in the same order, and mostly of the same lengths. So
a header is cut at once by the layout of an earlier one with as many bytes. Names and lengths are
compared, values are taken over. A header of any other form is left to the general decoder.

Source: common/protocol/header/EndTransactionRequestHeader.java.
"""

from collections.abc import Callable
from operator import itemgetter
from struct import Struct
from typing import Any, ClassVar, Final, NamedTuple

from protocol.codes import RequestCode, SerializeType
from protocol.errors import FrameError
from protocol.frame import (
    RESPONSE_FLAG,
    RemotingCommand,
    decode_binary_header,
    encode_binary_header,
)
from protocol.headers.transaction import EndTransactionHeader

_CODE: Final = int(RequestCode.END_TRANSACTION)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
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
