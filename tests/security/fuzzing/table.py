"""Every reader of bytes from outside, with the errors that it may raise: the targets of fuzz runs.

`test_decoders.py` fails when a reader of `protocol/` is missing from here.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from protocol.batch import decode_batch
from protocol.bodies_tables import TopicConfig
from protocol.compression import CompressionError, compress, inflate, unfolds_beyond
from protocol.errors import FrameError, RemoteError
from protocol.fastjson import loads_object, loads_standard
from protocol.fastjson_limits import NODES_MAX, SHORT_NODES_MAX, FastjsonError
from protocol.frame import RemotingCommand, decode_binary_header, decode_json_header
from protocol.ha import ReportBuffer, TransferBuffer, encode_report, encode_transfer_head
from protocol.headers.fields import Header
from protocol.headers.own import chain_of
from protocol.headers.send import SendMessageHeader
from protocol.host import address_part, pack_host, unpack_host
from protocol.java_numbers import NumberFormatError, parse_double, parse_int, parse_long
from protocol.json_body import Body, integer_of, text_of
from protocol.message import (
    RecordError,
    decode_records,
)
from protocol.message_id import parse_message_id
from protocol.properties import format as format_properties
from protocol.properties import parse
from protocol.receipts import (
    OrderCounts,
    ReceiptError,
    ReceiptHandle,
    format_bits,
    parse_bits,
    parse_offsets,
    parse_start_offsets,
)
from protocol.sink import (
    SinkMessage,
    decode_sink_body,
    encode_sink_body,
)
from protocol.span_names import parse_traceparent
from protocol.sql92 import EvaluationError, SqlError
from protocol.sql92.compile import _cache
from protocol.standard_json import library_loads
from protocol.tags import TagFilter
from protocol.timers import LevelTimers, RecallHandle
from tests.security.fuzzing.decoder import Decoder
from tests.security.fuzzing.elsewhere import ELSEWHERE
from tests.security.fuzzing.readers import (
    of_text,
    read_answers,
    read_body,
    read_compressed,
    read_end,
    read_expression,
    read_frame,
    read_hashes,
    read_header,
    read_json,
    read_marks,
    read_names,
    read_of_json,
    read_record,
    read_registered,
    read_send,
    read_shapes,
    read_signed,
    read_stream,
)
from tests.security.fuzzing.seeds import (
    EXPRESSIONS,
    MARK,
    PROPERTIES,
    batches_seeds,
    body_seeds,
    header_seeds,
    headers_seeds,
    records_seeds,
    registrations_seeds,
    texts_seeds,
    whole_seeds,
    without_length_seeds,
)
from tests.support.golden import REPOSITORY

UNFOLDED_BYTES_MAX = 4 << 20
"""Limit of decompressed bytes: callers set it, so the decoder promises none."""


def _subclasses(root: Any, package: str) -> list[Any]:
    """All classes of `protocol` below this one that hold fields."""
    found: list[Any] = []
    for each in root.__subclasses__():
        if each.__module__.startswith(package):
            found.append(each)
        found += _subclasses(each, package)
    return found


def _import_all() -> None:
    for path in sorted((REPOSITORY / "protocol").rglob("[a-z]*.py")):
        import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts))


PLAIN: list[Decoder] = [
    Decoder("frame", read_frame, (FrameError,), without_length_seeds, ("frame.decode_frame",)),
    Decoder(
        "header.json",
        decode_json_header,
        (FrameError,),
        partial(headers_seeds, 0),
        ("frame.decode_json_header",),
    ),
    Decoder(
        "header.binary",
        decode_binary_header,
        (FrameError,),
        partial(headers_seeds, 1),
        ("frame.decode_binary_header", "frame.read_binary_header"),
    ),
    Decoder(
        "stream.server",
        read_stream,
        (),
        whole_seeds,
        ("stream.Stream.receive", "stream.Stream.more", "frame.read_fields"),
    ),
    Decoder(
        "stream.client",
        read_answers,
        (FrameError,),
        whole_seeds,
        ("stream.CommandStream.receive", "stream.CommandStream.more"),
    ),
    Decoder(
        "send", read_send, (RemoteError,), without_length_seeds, ("send_wire.SendDecoder.general",)
    ),
    Decoder("end", read_end, (), partial(headers_seeds, 1), ("end_wire.EndDecoder.decode",)),
    Decoder("signature", read_signed, (), lambda: [*PROPERTIES], ("signature.signed_values",)),
    *(
        Decoder(
            f"fastjson.{name}",
            partial(read_json, nodes_max=limit),
            (FastjsonError,),
            texts_seeds,
            ("fastjson.loads", "fastjson_reader.read", "fastjson_reader.resolved"),
        )
        for name, limit in (("short", SHORT_NODES_MAX), ("long", NODES_MAX), ("file", None))
    ),
    Decoder(
        "fastjson.object", loads_object, (FastjsonError,), texts_seeds, ("fastjson.loads_object",)
    ),
    Decoder(
        "fastjson.standard",
        partial(loads_standard, nodes_max=SHORT_NODES_MAX),
        (ValueError,),
        texts_seeds,
        ("fastjson.loads_standard",),
    ),
    Decoder(
        "json.library", library_loads, (ValueError,), texts_seeds, ("standard_json.library_loads",)
    ),
    *(
        Decoder(
            f"json.{convert.__name__}",
            partial(read_of_json, convert),
            (ValueError,),
            texts_seeds,
            (f"json_body.{convert.__name__}",),
        )
        for convert in (text_of, integer_of)
    ),
    *(
        Decoder(
            name,
            partial(read_registered, version),
            (RemoteError,),
            registrations_seeds,
            ("registration.read_registration",),
        )
        for version, name in ((407, "registration"), (1, "registration.old"))
    ),
    Decoder(
        "registration.compressed",
        partial(read_registered, 407, compressed=True),
        (RemoteError,),
        registrations_seeds,
        ("bodies_tables.RegisterBrokerBody.decode",),
    ),
    Decoder(
        "topic line",
        of_text(TopicConfig.decode_line),
        (ValueError,),
        lambda: [b"Topic 8 8 6 SINGLE_TAG"],
        ("bodies_tables.TopicConfig.decode_line",),
    ),
]

OF_CONTENTS: list[Decoder] = [
    Decoder("batch", decode_batch, (RemoteError,), batches_seeds, ("batch.decode_batch",)),
    Decoder(
        "sink",
        decode_sink_body,
        (RemoteError,),
        lambda: [encode_sink_body([SinkMessage(0, 0, 1, bytes(8), b"body", b"a\x01b")] * 2)],
        ("sink.decode_sink_body",),
    ),
    Decoder(
        "sink.marks",
        read_marks,
        (),
        lambda: [MARK.text(), MARK.unique_key("t")],
        ("sink.parse_mark",),
    ),
    Decoder(
        "sink.chain",
        of_text(chain_of),
        (RemoteError,),
        lambda: [b"0123456789abcdef"],
        ("headers.own.chain_of",),
    ),
    Decoder(
        "record",
        read_record,
        (RecordError,),
        records_seeds,
        ("message.decode_record", "message.scan_head"),
    ),
    Decoder(
        "records",
        lambda data: list(decode_records(data)),
        (RecordError,),
        records_seeds,
        ("message.decode_records",),
    ),
    Decoder(
        "zlib",
        partial(inflate, max_bytes=UNFOLDED_BYTES_MAX),
        (CompressionError,),
        lambda: [compress(b"body" * 100)[0], compress(bytes(1 << 20))[0]],
        ("compression.inflate",),
    ),
    Decoder(
        "body",
        read_compressed,
        (CompressionError,),
        lambda: [b"\0" + compress(b"body" * 100)[0]],
        ("compression.decompress",),
    ),
    Decoder(
        "zlib.size",
        partial(unfolds_beyond, max_bytes=UNFOLDED_BYTES_MAX),
        (),
        lambda: [compress(b"body" * 100)[0]],
        ("compression.unfolds_beyond",),
    ),
    Decoder(
        "ha.report",
        lambda data: ReportBuffer().receive(data),
        (),
        lambda: [encode_report(7)],
        ("ha.ReportBuffer.receive",),
    ),
    Decoder(
        "ha.transfer",
        lambda data: TransferBuffer().receive(data),
        (FrameError,),
        lambda: [encode_transfer_head(7, 4) + b"body"],
        ("ha.TransferBuffer.receive",),
    ),
    Decoder(
        "properties",
        lambda data: format_properties(parse(data)),
        (),
        lambda: [*PROPERTIES],
        ("properties.parse",),
    ),
    Decoder(
        "properties.shapes",
        read_shapes,
        (),
        lambda: [*PROPERTIES],
        ("properties.pairs_of",),
    ),
]

OF_TEXTS: list[Decoder] = [
    Decoder(
        "message id",
        of_text(parse_message_id),
        (ValueError,),
        lambda: [b"7F00000100002A9F0000000000000007", b"F" * 56],
        ("message_id.parse_message_id",),
    ),
    Decoder(
        "host",
        lambda data: (unpack_host(data), address_part(data)),
        (ValueError,),
        lambda: [bytes(8), bytes(20)],
        ("host.unpack_host",),
    ),
    Decoder(
        "address",
        of_text(lambda text: pack_host(text, 1)),
        (ValueError,),
        lambda: [b"127.0.0.1", b"fe80::1%eth0"],
        (),
    ),
    Decoder(
        "names", of_text(read_names), (), lambda: [b"Topic", b"%RETRY%g", b"::1", b"F" * 32], ()
    ),
    Decoder("hashes", read_hashes, (), lambda: [b"group", bytes(40)]),
    Decoder(
        "tags",
        of_text(TagFilter.parse),
        (RemoteError,),
        lambda: [b"a || b", b"*"],
        ("tags.TagFilter.parse",),
    ),
    Decoder(
        "sql92",
        read_expression,
        (SqlError, EvaluationError),
        lambda: [*EXPRESSIONS],
        ("sql92.compile.compile_filter", "sql92.grammar.parse", "sql92.lexer.tokens"),
        forget=_cache.clear,
    ),
    *(
        Decoder(
            f"number.{read.__name__.removeprefix('parse_')}",
            of_text(read),
            (NumberFormatError,),
            lambda: [
                b"-2147483648",
                b"9223372036854775807",
                "٢".encode(),
                b"1_0",
                b"0x1p3",
                b"1e9",
            ],
            (f"java_numbers.{read.__name__}",),
        )
        for read in (parse_int, parse_long, parse_double)
    ),
    Decoder(
        "receipt.handle",
        of_text(ReceiptHandle.parse),
        (ReceiptError,),
        lambda: [b"7 1795188797085 60000 999 0 broker-a 3 9"],
        ("receipts.ReceiptHandle.parse",),
    ),
    *(
        Decoder(
            f"receipt.{name}",
            of_text(read),
            (ReceiptError,),
            lambda: [b"0 3 7,8;1 0 9", b"0 3 7", b"0 qo3%7 2"],
            (f"receipts.{covers}",) if covers else (),
        )
        for name, read, covers in (
            ("starts", parse_start_offsets, "parse_start_offsets"),
            ("offsets", parse_offsets, "parse_offsets"),
            ("counts", OrderCounts, ""),
        )
    ),
    Decoder(
        "timers.recall handle",
        of_text(RecallHandle.decode),
        (ValueError,),
        lambda: [RecallHandle("Topic", "broker-a", 1_700_000_000_000, "ID").encode().encode()],
        ("timers.RecallHandle.decode",),
    ),
    Decoder(
        "timers.figures",
        of_text(LevelTimers.decode),
        (),
        lambda: [LevelTimers(7, 1_700_000_000_000, 9, 3, 2, 1, 35, 4).encode().encode()],
        ("timers.LevelTimers.decode",),
    ),
    Decoder(
        "receipt.bits",
        of_text(lambda text: parse_bits(text, 1 << 40)),
        (ReceiptError,),
        lambda: [format_bits([0, 3, 900], 0).encode()],
        ("receipts.parse_bits",),
    ),
    Decoder(
        "traceparent",
        of_text(parse_traceparent),
        (),
        lambda: [b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
        ("span_names.parse_traceparent",),
    ),
]


def _all() -> Iterable[Decoder]:
    _import_all()
    yield from (*PLAIN, *OF_CONTENTS, *OF_TEXTS)
    for body in _subclasses(Body, "protocol."):
        yield Decoder(
            f"body.{body.__name__}",
            partial(read_body, body),
            (RemoteError,),
            partial(body_seeds, body),
            ("json_body.Body.decode", "json_body.Body.from_json"),
        )
    for header in _subclasses(Header, "protocol."):
        yield Decoder(
            f"fields.{header.__name__}",
            partial(read_header, header.decode),
            (RemoteError,),
            partial(header_seeds, header),
            ("headers.fields.Header.decode",),
        )
    yield Decoder(
        "fields.SendMessageHeader.short",
        partial(read_header, SendMessageHeader.decode_v2),
        (RemoteError,),
        partial(header_seeds, SendMessageHeader, short=True),
        ("headers.send.SendMessageHeader.decode_v2",),
    )
    yield Decoder(
        "fields.SendMessageHeader.of",
        lambda data: SendMessageHeader.of_command(RemotingCommand(10, parse(data))),
        (RemoteError,),
        partial(header_seeds, SendMessageHeader),
        ("headers.send.SendMessageHeader.of_command",),
    )
    yield from ELSEWHERE


BYTES_MAX = {
    **dict.fromkeys(("frame", "header.json", "header.binary", "send"), 1 << 20),
    "stream.server": 256 << 10,  # what a server reads at once; the smallest frames take 2.4 µs each
    **dict.fromkeys(("batch", "batch.alike", "sink", "record", "records"), 1 << 20),
    **dict.fromkeys(("fastjson.short", "fastjson.standard", "jobs.arguments"), 1 << 20),
}
"""Length limits that differ from the usual one. Bodies read on the loop have a megabyte as well."""


def _with_limit(decoder: Decoder) -> Decoder:
    if decoder.name.startswith("body."):
        kind = decoder.name.removeprefix("body.")
        found = next(each for each in _subclasses(Body, "protocol.") if each.__name__ == kind)
        is_read_on_loop = found.nodes_max <= SHORT_NODES_MAX
        return replace(decoder, bytes_max=1 << 20) if is_read_on_loop else decoder
    return replace(decoder, bytes_max=BYTES_MAX.get(decoder.name, decoder.bytes_max))


DECODERS: dict[str, Decoder] = {each.name: _with_limit(each) for each in _all()}
"""Decoders by name, which is also the name of their corpus folder."""
