"""A stranger's bytes, read in every way that our servers read any: only refusals come of it.

    first byte % 8
    0 to 4   a stream of frames: whole, in pieces, by the fast decoders and without them
    5        a JSON text
    6        an SQL92 expression
    7        a registration, compressed or not; a batch; the lines of replication

Whatever is raised, but for what tells the peer of its mistake, is a fault of ours.
"""

from contextlib import suppress
from dataclasses import astuple, replace
from sys import maxsize

from protocol.batch import decode_batch
from protocol.bodies import CheckClientRequest, HeartbeatData, LockBatchRequest
from protocol.bodies_client import ConsumerRunningInfo, ResetOffsetBody
from protocol.bodies_tables import (
    DataVersion,
    RegisterBrokerBody,
    SubscriptionGroupConfig,
    TopicConfigTable,
)
from protocol.codes import RequestCode as Code
from protocol.compression import CompressionError, inflate
from protocol.errors import FrameError, RemoteError
from protocol.fastjson import dumps, loads
from protocol.fastjson_limits import FastjsonError
from protocol.frame import RemotingCommand, decode_frame, encode
from protocol.ha import ReportBuffer, TransferBuffer
from protocol.json_body import Body
from protocol.properties import parse
from protocol.registration import read_registration
from protocol.send_values import Send
from protocol.send_wire import SendDecoder
from protocol.signature import signed_values
from protocol.sink import decode_sink_body
from protocol.sql92 import SqlError, compile_filter
from protocol.sql92.errors import EvaluationError
from protocol.stream import Event, SendGroup, Stream, UnreadableSend
from protocol.tags import TagFilter
from tests.support.headers_by_code import REQUEST_HEADERS

KINDS = 8
FRAME_BYTES_MAX = 1 << 20
BODIES: dict[int, type[Body]] = {
    Code.HEART_BEAT: HeartbeatData,
    Code.CHECK_CLIENT_CONFIG: CheckClientRequest,
    Code.LOCK_BATCH_MQ: LockBatchRequest,
    Code.UNLOCK_BATCH_MQ: LockBatchRequest,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig,
    Code.REGISTER_BROKER: RegisterBrokerBody,
    Code.QUERY_DATA_VERSION: DataVersion,
    Code.GET_ALL_TOPIC_CONFIG: TopicConfigTable,
    Code.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetBody,
    Code.GET_CONSUMER_RUNNING_INFO: ConsumerRunningInfo,
}


def take(data: bytes) -> None:
    """One input of a fuzzer."""
    if not data:
        return
    kind, rest = data[0] % KINDS, data[1:]
    if kind == 5:
        _take_json(rest)
    elif kind == 6:
        _take_expression(rest)
    elif kind == 7:
        _take_others(rest)
    else:
        _take_frames(rest, data[0])


# --- frames


def _take_frames(data: bytes, seed: int) -> None:
    whole = _said(_events([data], is_fast=True))
    general = _said(_events([data], is_fast=False))
    assert whole == general, "the fast decoders say something else"
    step = 1 + seed % 7
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    assert whole == _said(_events(pieces, is_fast=True)), "pieces say something else"
    assert whole == _said(_events([data], is_fast=True, most=step)), "a few say something else"


def _events(pieces: list[bytes], *, is_fast: bool, most: int = maxsize) -> list[Event]:
    stream = Stream(FRAME_BYTES_MAX, SendDecoder() if is_fast else None, most)
    found: list[Event] = []
    for piece in pieces:
        found += stream.receive(piece)
        while stream.has_more:
            found += stream.more()
        if found and isinstance(found[-1], FrameError):
            break
    return found


def _said(events: list[Event]) -> tuple[list[object], list[object], list[object]]:
    """The sends, those that are refused, the rest: sends of one read come together behind all."""
    sends: list[object] = []
    refused: list[object] = []
    others: list[object] = []
    for event in events:
        if isinstance(event, SendGroup):
            sends += map(_send, event.sends)
        elif isinstance(event, UnreadableSend):
            refused.append(event.error.remark)
        elif isinstance(event, FrameError):
            others.append("broken")
        elif isinstance(event, tuple):  # no stream here knows ends of transactions
            raise AssertionError(event)
        elif event.code in SendDecoder.CODES and not event.is_response:
            try:
                sends.append(_send(SendDecoder().general(event)))
            except RemoteError as error:
                refused.append(error.remark)
        else:
            others.append(_command(event))
    return sends, refused, others


def _send(send: Send) -> object:
    with suppress(RemoteError):
        decode_batch(send.body)
    with suppress(RemoteError):
        decode_sink_body(send.body)
    parse(send.properties)
    shape = astuple(replace(send.shape, values=b""))
    tail: tuple[object, ...] = astuple(send.tail)
    if (signed := send.signature) is not None:  # one that is no UTF-8 is wrong either way
        signature = signed.signature.decode("utf-8", "replace").encode()
        tail += (signed.access_key, signature, signed.timestamp, signed.values)
    rest = (send.opaque, send.flag, send.queue_id, send.sys_flag, send.born_timestamp)
    return (shape, tail, rest, send.message_flag, send.properties, send.body)


def _command(command: RemotingCommand) -> object:
    again = decode_frame(encode(command)[4:])
    assert again.opaque == command.opaque
    signed_values(command.fields or {})
    header = None
    if (kind := REQUEST_HEADERS.get(command.code)) is not None:
        with suppress(RemoteError):
            header = kind.decode(command.fields)
    if (body := BODIES.get(command.code)) is not None:
        with suppress(RemoteError):
            body.decode(command.body).encode()
    return (command.code, command.opaque, command.flag, command.fields, command.body, header)


# --- texts


def _take_json(data: bytes) -> None:
    try:
        value = loads(data)
        loads(dumps(value))
    except FastjsonError:
        pass
    for body in BODIES.values():
        with suppress(RemoteError):
            body.decode(data).encode()


def _take_expression(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with suppress(RemoteError):
        TagFilter.parse(text)
    try:
        matches = compile_filter(text)
    except SqlError:
        return
    for properties in ({}, {"a": "1", "b": "x"}, {"a": "-9e400", "b": ""}):
        with suppress(EvaluationError):
            assert matches(properties) in (True, False, None)


def _take_others(data: bytes) -> None:
    with suppress(RemoteError):
        for topics in read_registration(data, 407, compressed=False).slices:
            assert topics is not None
    with suppress(RemoteError):
        read_registration(data, 407, compressed=True)
    with suppress(CompressionError):
        inflate(data, 1 << 20)
    with suppress(RemoteError):
        decode_batch(data)
    with suppress(RemoteError):
        decode_sink_body(data)
    parse(data)
    ReportBuffer().receive(data)
    with suppress(FrameError):
        TransferBuffer().receive(data)
