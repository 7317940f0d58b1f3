"""Readers of bytes from outside that are not in `protocol/`: tables, answers, pages, jobs.

What they need is imported when they run: a process that tries one of them has no other's modules.
"""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from actors.metrics.page_server import HttpRefused
from protocol.errors import RemoteError
from protocol.fastjson_limits import FastjsonError
from protocol.frame import RemotingCommand
from protocol.message import RecordError
from protocol.properties import format as format_properties
from protocol.properties import parse
from storage.access.addresses import AddressError
from storage.errors import StoreError
from tests.security.fuzzing.decoder import Decoder
from troupemq.client.errors import ClientError


def _later(module: str, name: str) -> Callable[..., Any]:
    """A function that is imported by its first call."""
    return lambda *given: getattr(import_module(module), name)(*given)


def _table(name: str, module: str, text: bytes) -> Decoder:
    """A reader of a table: files, and what a master answers its slave."""

    def read(data: bytes) -> object:
        left_out: list[Any] = []
        found = getattr(import_module(f"storage.tables.{module}"), name)(data, left_out)
        return found, [each.line() for each in left_out]

    from protocol.errors import RemoteError

    return Decoder(f"table.{module}", read, (ValueError, RemoteError), lambda: [text])


def _journal(data: bytes) -> object:
    from storage.tables.offset_journal import OffsetState, apply, entries, read_head

    head = read_head(data)
    found = [*entries(data, 0 if head is None else head[2])]
    state = OffsetState()
    apply(data, [], state)
    return found, state.offsets, [[*each.offsets()] for each in state.ahead.values()]


def _journal_payload() -> bytes:
    from storage.tables.ahead_set import AheadSet
    from storage.tables.offset_journal import JournalFile
    from troupemq.testing.fake_disk import FakeDisk

    disk = FakeDisk()
    file = JournalFile(disk, "/offsets", 1, 0)
    start = file.size + 8
    file.settle("T@G", 1, 5, [7, 9])
    file.settled({("T@G", 1): AheadSet(8, b"\x06")})
    file.move("T@G", 0, 3)
    file.remove("U@G")
    file.write()
    return disk.read_bytes("/offsets/1")[start:]


def _filters(data: bytes) -> object:
    from protocol.bloom import BloomFilter
    from storage.tables.consumer_filters import parse_filters

    left_out: list[Any] = []
    return parse_filters(data.decode("utf-8", "replace"), BloomFilter.of(), left_out)


def _views(data: bytes) -> object:
    from protocol.compression import CompressionError
    from protocol.message import decode_records
    from troupemq.client.message import MessageQueue, view_of

    views = [view_of(each, MessageQueue("T", "b", 0)) for each in decode_records(data)]
    for each in views:
        with suppress(CompressionError):
            assert each.body is not None
    return [(each.tags, each.keys, each.born_host) for each in views]


def _running_info(data: bytes) -> object:
    from protocol.bodies_admin import ClientConnection
    from protocol.fastjson import loads_object
    from troupemq.client.admin.members import ClientInfo, plain_names
    from troupemq.client.admin.progress import AskedMember, members_of_group

    said = plain_names(loads_object(data))
    member = AskedMember(ClientConnection("c", "a", "JAVA", 1), ClientInfo(said))
    (progress,) = members_of_group("g", [member], [], now_ms=1)
    return said, progress.row()


def _job_arguments(data: bytes) -> object:
    from actors.jobs.spark_jobs import _arguments

    return _arguments(data.decode("utf-8", "replace"), "127.0.0.1:1")


def _spark_body(data: bytes) -> object:
    from protocol.codes import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
    from spark.decoding.decode import plain_body

    kinds = (COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD, 0)
    kind = kinds[data[0] & 3] if data else 0
    return plain_body(data[1:], COMPRESSED | kind, 4 << 20)


def _spark_records(data: bytes) -> object:
    from spark.decoding.columns import COLUMNS
    from spark.decoding.decode import batches
    from spark.decoding.log_walk import _walked, run
    from spark.decoding.store_files import LogBytes

    log: Any = LogBytes(0, data)
    for records in _walked(log, *run(data, 0, len(data))):
        for batch in batches(records, tuple(COLUMNS)):
            batch.validate(full=True)
    return None


class _Answering:
    """In the place of a line to a broker, which answers with this."""

    address = "192.0.2.1:10911"

    def __init__(self, answer: RemotingCommand) -> None:
        self._answer = answer

    def call(self, *_: object, repeats: bool) -> RemotingCommand:
        assert repeats
        return self._answer


def _spark_answer(data: bytes) -> object:
    from protocol.headers.own import ReadRecordsHeader
    from spark.source.plan import QueueRange
    from spark.source.raw import _scanned, ask

    head, _, body = data.partition(b"\3")
    line: Any = _Answering(RemotingCommand(0, parse(head), body))
    answer = ask(line, ReadRecordsHeader("Topic", 0, 0, 100, 1 << 20))
    return _scanned(answer, QueueRange("Topic", 0, 0, 100, broker="b"), 0)


def _spark_answers() -> list[bytes]:
    from struct import pack

    from protocol.headers.own import RawResponseHeader

    (record, _) = _records()
    header = RawResponseHeader(1, 0, 1, 0, 10_000, 1, 1)
    unit, piece = pack(">qiq", 0, len(record), 0), pack(">qi", 0, len(record))
    return [format_properties(header.encode()) + b"\3" + unit + piece + record]


def _spark_bodies() -> list[bytes]:
    from zlib import compress

    import pyarrow as pa  # type: ignore[import-untyped]

    packed = [
        compress(b"body" * 9),
        *(pa.compress(b"body" * 9, c, asbytes=True) for c in ("lz4", "zstd")),
    ]
    return [bytes((kind,)) + each for kind, each in enumerate(packed)]


def _records() -> list[bytes]:
    from protocol.message import MessageRecord, encode_record

    return [encode_record(MessageRecord("Topic", b"body", b"TAGS\x01a\x02KEYS\x01k"))] * 2


FILTERS = (
    b'{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bloomFilterData":{"bitNum":112,"bitPos":[1]},'
    b'"bornTime":1,"clientVersion":1,"consumerGroup":"G","deadTime":0,"expression":"a > 1",'
    b'"expressionType":"SQL92","topic":"T"}},"topic":"T"}}}'
)


VERSION = b'"dataVersion":{"counter":1,"timestamp":2}'
TOPICS = b'{"topicConfigTable":{"T":{"topicName":"T"}},%b}' % VERSION
GROUPS = b'{"subscriptionGroupTable":{"G":{"groupName":"G"}},%b}' % VERSION
KEPT = b'{"cluster":"c","broker":"b","topics":[],"groups":[]}'
ASKED = b"GET /metrics?name%5B%5D=a HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n"
INFO = b'{"mqTable":{{"brokerName":"b","queueId":3,"topic":"t"}:{"cachedMsgCount":1}}}'
INFO_IN_HAND = (
    b'{"mqTable":{{"brokerName":"b","queueId":3,"topic":"t"}:{"cachedMsgCount":1,'
    b'"inHand":[{"msgId":"i","queueOffset":7,"since":5,"tries":1}],"lastConsumedOffset":6}},'
    b'"statusTable":{"t":{"consumeOKTPS":1.5}}}'
)
STACKS = (
    b"troupemq-consume-g-0  TID: 1 STATE: RUNNABLE\n"
    b"troupemq-consume-g-0  slow(/srv/a.py:8)\n"
    b"troupemq-consume-g-0  call_listener(/lib/python3/x.py:1)\n"
)
TRACE = b"Pub\x011\x01r\x01g\x01T\x01id\x01tag\x01key\x01h\x015\x013\x010\x01o\x01true\x02"


def _task(data: bytes) -> None:
    """Read a task as a worker does before kombu gets it."""
    envelope = import_module("troupemq.kombu.envelope")
    task = envelope.decode(data)
    envelope.due_ms(task)
    envelope.step_of(task)
    envelope.mark_redelivered(task)
    envelope.message_of("topic", task, 0)


def _tasks() -> list[bytes]:
    line = (
        b'{"content-type":"application/json","content-encoding":"utf-8","headers":{"id":"1",'
        b'"task":"add","eta":"2026-11-27T12:00:00+00:00","at":{"__type__":"datetime","__value__":'
        b'"2026-11-27T12:00:00"}},"properties":{"priority":3,"expiration":"5","delivery_info":'
        b'{"exchange":"","routing_key":"q"}}}'
    )
    return [line + b"\n[[1],{},{}]"]


ELSEWHERE: list[Decoder] = [
    _table("parse_topics", "topics", TOPICS),
    _table("parse_groups", "groups", GROUPS),
    _table("parse_offsets", "offsets", b'{"offsetTable":{"T@G":{0:5,1:6}}}'),
    Decoder("offset journal", _journal, (ValueError,), lambda: [_journal_payload()]),
    _table("parse_delay_offsets", "delay_offsets", b'{"offsetTable":{1:5,2:6}}'),
    _table("parse_kv", "kv_config", b'{"configTable":{"N":{"k":"v"}}}'),
    Decoder(
        "table.consumer_filters",
        _filters,
        (ValueError, RemoteError),
        lambda: [FILTERS],
    ),
    Decoder(
        "table.crc",
        lambda data: import_module("storage.tables.crc_sidecar").Sidecar.decode(data),
        (),
        lambda: [b"0123abcd 17 topics.json\n"],
    ),
    Decoder(
        "client.views",
        _views,
        (RecordError,),
        _records,
    ),
    Decoder(
        "console.running_info",
        _running_info,
        (FastjsonError, RemoteError),
        lambda: [INFO, INFO_IN_HAND],
    ),
    Decoder(
        "admin.stacks",
        lambda data: [
            each.folded()
            for each in import_module("troupemq.client.admin.stacks").stacks_of(
                data.decode("utf-8", "replace"), "g"
            )
        ],
        (),
        lambda: [STACKS],
    ),
    Decoder(
        "console.trace",
        lambda data: list(import_module("troupemq.client.admin.reading").events_of(data)),
        (),
        lambda: [TRACE],
    ),
    Decoder(
        "console.export",
        _later("troupemq.client.admin.transfer", "parse_export"),
        (ClientError,),
        lambda: [b'{"brokers":[%b],"orders":{}}' % KEPT],
    ),
    Decoder(
        "access.addresses",
        lambda data: import_module("storage.access.addresses").parse_addresses(
            data.decode("utf-8", "replace")
        ),
        (AddressError,),
        lambda: [b"10.0.0.{1,2}", b"10.0.0.4-9", b"1050::5:1-20:*", b"10.0.0.0/8"],
    ),
    Decoder(
        "http.request",
        _later("actors.metrics.page_server", "parse_request"),
        (HttpRefused,),
        lambda: [ASKED],
    ),
    Decoder(
        "spans.carried",
        _later("actors.spans.span_queue", "carried"),
        (),
        lambda: [b"traceparent\x0100-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
    ),
    Decoder(
        "settings",
        lambda data: import_module("protocol.properties_file").parse_properties(
            data.decode("utf-8", "replace")
        ),
        (ValueError,),
        lambda: [b"a=b\\\n c\n#d\ne\\:f : \\u0041\\ud83d\\ude80"],
        ("properties_file.parse_properties",),
    ),
    Decoder(
        "console.settings",
        lambda data: import_module("troupemq.client.admin.brokers").properties_of(data),
        (),
        lambda: [b"a=b\nc=\\u12\n"],
    ),
    Decoder(
        "jobs.arguments",
        _job_arguments,
        (RemoteError,),
        lambda: [b'{"from":"daily","more":1}'],
    ),
    Decoder("spark.body", _spark_body, (), _spark_bodies),
    Decoder("spark.records", _spark_records, (), _records),
    Decoder("spark.answer", _spark_answer, (StoreError,), _spark_answers),
]

with suppress(ImportError):
    import_module("kombu")
    ELSEWHERE.append(Decoder("kombu.task", _task, (ValueError, ClientError), _tasks))
