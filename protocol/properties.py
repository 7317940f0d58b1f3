"""Property text of a message: `name 0x01 value` pairs joined with 0x02, UTF-8.

4.9.7 writes no trailing separator, 5.x and Go clients write one; the reader takes both, and drops
pairs without a name or without a value.

A broker reads the bytes of each send. One producer's messages carry the same names in the same
order (a Java client's hash map puts them so). PropertyShapes learns the sequence of names from one
message, as a regular expression that cuts out the values a broker wants. The next message is
matched against it before anything else: 1.0 µs for four properties, 2.2 µs parsed.

Source: common/message/MessageDecoder.java (messageProperties2String, string2messageProperties),
MessageConst.java.
"""

from collections.abc import Mapping
from re import Pattern, escape
from re import compile as compile_pattern

from protocol.timers import TIMER_NAMES, TIMER_OUT_MS
from protocol.topic_names import REFUSED_TOPICS

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
PROPERTIES_BYTES_MAX = 32_767
"""The length field is a signed 16-bit integer."""

KEYS = "KEYS"
KEY_SEPARATOR = " "
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
BUYER_ID = "BUYER_ID"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"
RECONSUME_TIME = "RECONSUME_TIME"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
UNIQ_KEY = "UNIQ_KEY"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME = "CONSUME_START_TIME"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
CLUSTER = "CLUSTER"
MSG_TYPE = "MSG_TYPE"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
TROUPE_OWNER = "TROUPE_OWNER"
TROUPE_FAILURE = "TROUPE_FAILURE"
FAILURE_BYTES_MAX = 1024
"""TroupeMQ extension: maximum stored bytes of a listener's failure."""

RESERVED_NAMES = frozenset(
    value
    for name, value in globals().items()
    if name.isupper() and isinstance(value, str) and len(value) > 1
)
"""Names that belong to broker and clients; applications may not set them."""

NOT_COPIED = RESERVED_NAMES | {name.decode() for name in (*TIMER_NAMES, TIMER_OUT_MS)}
"""Names that a message lacks when it is sent again: it does not wait again either."""


def failure_bytes(text: str, room: int = FAILURE_BYTES_MAX) -> bytes:
    """Return the value of TROUPE_FAILURE for a text: one line, cut to fit."""
    if room <= 0:
        return b""
    cut = "".join(char if char.isprintable() else " " for char in text[:FAILURE_BYTES_MAX])
    encoded = cut.strip().encode("utf-8", "replace")[: min(room, FAILURE_BYTES_MAX)]
    return encoded.decode("utf-8", "ignore").encode()


def parse(raw: bytes | memoryview) -> dict[str, str]:
    """Return properties by name, in the order of the text; of a repeated name the last value."""
    properties: dict[str, str] = {}
    for pair in str(raw, "utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def format(properties: Mapping[str, str]) -> bytes:
    """Return the text that 4.9.7 would store for these properties, without trailing separator."""
    return PROPERTY_SEPARATOR.join(
        f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items()
    ).encode("utf-8", "replace")


# --- texts in bytes

find_pairs = compile_pattern(rb"(?<![^\x02])([^\x01\x02]+)\x01([^\x02]+)").findall
"""Pattern of names and values of a text, without incomplete pairs."""


def pairs_of(properties: bytes) -> dict[bytes, bytes]:
    """Return values by name, as `find_pairs` has them: 1.1 µs for eight pairs instead of 1.8."""
    pairs: dict[bytes, bytes] = {}
    try:
        for pair in properties.split(b"\x02"):
            name, value = pair.split(b"\x01")
            if not name or not value:
                break
            pairs[name] = value
        else:
            return pairs
    except ValueError:
        pass
    return dict(find_pairs(properties))  # the text is odd


def real_topic(topic: str, properties: bytes) -> str:
    """Return the real topic of a record in `topic`.

    Half messages and delayed messages are stored in topics of the broker's own. Only the broker
    writes to those. Properties of a record with a unit there can thus be trusted
    (storage/reading/record_place.py).
    """
    if topic not in REFUSED_TOPICS:
        return topic
    real = dict(find_pairs(properties)).get(REAL_TOPIC.encode())
    return topic if real is None else real.decode("utf-8", "replace")


Cut = tuple[bytes, bytes, bytes, bytes, bytes]
"""Text before WAIT, text behind it (with its separator), UNIQ_KEY, KEYS, TAGS; each may be empty.
"""

_VALUE = rb"[^\x01\x02]+"
_WAIT, _WAIT_VALUE = b"WAIT", b"true"
_WANTED = (b"UNIQ_KEY", b"KEYS", b"TAGS")
_NAMES_MAX = 64
_NAMES_BYTES_MAX = 2048
_SHAPES_MAX = 256
_TEXTS_PER_SHAPE = 128
"""Parsed texts for each new sequence of names that is learnt: an expression takes 1 to 3 ms."""
_SHAPES_AT_ONCE = 8
"""Sequences that may be learnt from as many texts."""


class PropertyShapes:
    """Cutter of property texts by the sequences of names it has seen."""

    __slots__ = ("_known", "_match", "_order", "_parsed")

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], tuple[Pattern[bytes], tuple[int, ...]]] = {}
        nothing = compile_pattern(rb"(?!)()()()()()")
        self._match = nothing.fullmatch
        self._order: tuple[int, ...] = (1, 2, 3, 4, 5)
        self._parsed = _TEXTS_PER_SHAPE * _SHAPES_AT_ONCE
        """Parsed texts that no sequence has been learnt for."""

    def cut(self, properties: bytes) -> Cut | None:
        """Return the parts of a text with the names last seen.

        None means to parse the text and to `learn` its names.
        """
        found = self._match(properties)
        return None if found is None else found.group(*self._order)  # type: ignore[return-value]

    def learn(self, properties: bytes, pairs: Mapping[bytes, bytes]) -> None:
        """Expect the next text to have the same names in the same order.

        Texts with ever new names are parsed; few of them are learnt, as others wait meanwhile.
        """
        names = tuple(pairs)
        self._parsed = min(self._parsed + 1, _TEXTS_PER_SHAPE * _SHAPES_AT_ONCE)
        if pairs.get(_WAIT, _WAIT_VALUE) != _WAIT_VALUE:
            return
        known = self._known.get(names)
        if known is None:
            pairs_in_text = properties.removesuffix(b"\x02").count(b"\x02") + 1
            canonical = len(names) == pairs_in_text <= _NAMES_MAX
            if not canonical or names == (_WAIT,) or not names:
                return
            if self._parsed < _TEXTS_PER_SHAPE or sum(map(len, names)) > _NAMES_BYTES_MAX:
                return
            self._parsed -= _TEXTS_PER_SHAPE
            if len(self._known) >= _SHAPES_MAX:
                self._known.clear()
            known = self._known[names] = _compile(names)
        self._match, self._order = known[0].fullmatch, known[1]


def _compile(names: tuple[bytes, ...]) -> tuple[Pattern[bytes], tuple[int, ...]]:
    """Return the expression of a sequence of names, and the places of the five parts of a Cut."""
    split = names.index(_WAIT) if _WAIT in names else len(names)
    before, behind = names[:split], names[split + 1 :]
    groups: list[bytes] = [b"before"]
    text = b"(" + _pairs(before, groups) + b")"
    if split < len(names):
        text += (rb"\x02" if before else b"") + _WAIT + rb"\x01" + _WAIT_VALUE
    if not before and behind:
        text += rb"\x02"  # then the text behind it starts without a separator
    groups.append(b"behind")
    text += b"(" + (rb"\x02" if before and behind else b"") + _pairs(behind, groups) + b")"
    text += rb"\x02?"
    for name in _WANTED:
        if name not in groups:
            groups.append(name)
            text += b"()"
    order = tuple(groups.index(name) + 1 for name in (b"before", b"behind", *_WANTED))
    return compile_pattern(text), order


def _pairs(names: tuple[bytes, ...], groups: list[bytes]) -> bytes:
    parts = []
    for name in names:
        value = _VALUE
        if name in _WANTED:
            groups.append(name)
            value = b"(" + _VALUE + b")"
        parts.append(escape(name) + rb"\x01" + value)
    return rb"\x02".join(parts)
