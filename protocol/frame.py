"""Frames: the encoding of one command each.

All integers big-endian.

    offset  size  type   field
    0       4     i32    length           of all that follows
    4       1     u8     serialize type   0 JSON, 1 ROCKETMQ
    5       3     u24    header length
    8       h     bytes  header
    8+h     rest  bytes  body             none when nothing is left

Source: remoting/netty/NettyDecoder.java, remoting/protocol/RemotingCommand.java (decode, encode).
Input on which RocketMQ closes the connection raises FrameError.
"""

from struct import Struct

from protocol.codes import ResponseCode, SerializeType
from protocol.command import RemotingCommand
from protocol.errors import FrameError
from protocol.header_binary import encode_header as encode_binary_header
from protocol.header_binary import read_header as read_binary_header
from protocol.header_json import decode_header as decode_json_header
from protocol.header_json import encode_header as encode_json_header

FRAME_BYTES_MAX = 16_777_216
"""With its length field; com.rocketmq.remoting.frameMaxLength of RocketMQ."""

HEADER_BYTES_MAX = 1 << 20
"""Maximum header length. The longest of a client has 32 KiB of properties, six times that escaped.
"""

_MARK = Struct(">I")
_LENGTH_AND_MARK = Struct(">iI")
_HEADER_LENGTH_MASK = 0xFFFFFF
_SERIALIZE_TYPE_SHIFT = 24
BINARY_OPAQUE_AT = _LENGTH_AND_MARK.size + Struct(">hbh").size
"""Position of opaque in a binary frame, behind code, language and version."""


def decode_frame(frame: bytes | memoryview) -> RemotingCommand:
    """Return the command of a whole frame without its length field.

    The body is copied. Raises FrameError where RocketMQ closes the connection.
    """
    total = len(frame)
    if total < _MARK.size:
        raise _broken(f"a frame length of {total}")
    (mark,) = _MARK.unpack_from(frame)
    header_bytes = mark & _HEADER_LENGTH_MASK
    kind = mark >> _SERIALIZE_TYPE_SHIFT
    body_start = _MARK.size + header_bytes
    if body_start > total:
        raise _broken(f"a header of {header_bytes} bytes in a frame of {total}")
    if header_bytes > HEADER_BYTES_MAX:
        raise _broken(f"a header of {header_bytes} bytes; at most {HEADER_BYTES_MAX}")
    body_bytes = total - body_start
    if kind == SerializeType.JSON:
        command = decode_json_header(frame[_MARK.size : body_start])
    elif kind == SerializeType.ROCKETMQ:
        command, body_start = read_binary_header(frame, _MARK.size, header_bytes)
        if body_start + body_bytes > total:
            raise _broken("the header ends behind its length")
    else:
        raise _broken(f"unknown serialize type {kind}")
    if body_bytes:
        command.body = bytes(frame[body_start : body_start + body_bytes])
    return command


def encode(command: RemotingCommand) -> bytes:
    """Return the whole frame."""
    body = command.body or b""
    return b"".join((encode_head(command, len(body)), body))


def encode_head(command: RemotingCommand, body_bytes: int) -> bytes:
    """Return the frame up to its body, for bodies that are sent from their place."""
    if command.serialize_type == SerializeType.ROCKETMQ:
        header = encode_binary_header(command)
    else:
        header = encode_json_header(command)
    mark = command.serialize_type << _SERIALIZE_TYPE_SHIFT | len(header)
    return _LENGTH_AND_MARK.pack(_MARK.size + len(header) + body_bytes, mark) + header


def _broken(why: str) -> FrameError:
    return FrameError(ResponseCode.SYSTEM_ERROR, f"decode error: {why}")
