"""Rewriting of a send's properties to their stored form, and the redirection of its record.

4.9.7 parses the property text into a hash map, adds CLUSTER, drops WAIT and formats the text again.
This rewriter keeps the client's order. It edits a canonical text as bytes, and parses and formats
any other. One producer's messages carry the same names in the same order (a Java client's hash map
puts them so). PropertyShapes learns the sequence of names from one message, as a regular expression
that cuts out the wanted values. The next message is matched against it before anything else: 1.0 µs
for four properties, 2.2 µs parsed.

A delayed message and a timer go to SCHEDULE_TOPIC_XXXX, a half message to
RMQ_SYS_TRANS_HALF_TOPIC. All keep their real topic and queue in their properties.

Source: SendMessageProcessor.asyncSendMessage, CommitLog.asyncPutMessage,
TransactionalMessageBridge.parseHalfMessageInner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from re import Pattern, escape
from re import compile as compile_pattern
from typing import NamedTuple, TypeAlias

from actors.sending.send_rules import RefusedError, TimerRules
from protocol.codes import TRANSACTION_COMMIT, TRANSACTION_MASK, ResponseCode
from protocol.errors import RemoteError
from protocol.java_numbers import NumberFormatError, int_in
from protocol.properties import find_pairs, pairs_of
from protocol.tags import CACHED_TAG_CHARS, tags_code
from protocol.timers import TIMER_NAMES, TIMER_OUT_MS, due_property
from protocol.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from storage.dispatching.dispatch import INDEXED_WORDS_MAX, words_of

_WAIT_TRUE = b"WAIT\x01true"
_TRAN_MSG_TRUE = b"\x02TRAN_MSG\x01true\x02"
_DELAY = b"\x02DELAY\x01"
_SHOWN = frozenset((b"UNIQ_KEY", b"KEYS", b"TAGS"))
_ADDED = frozenset((b"CLUSTER", b"REAL_TOPIC", b"REAL_QID"))
"""Properties that are appended to a redirected message, unless its text contains one."""
_SPECIAL = frozenset((b"DELAY", b"TRAN_MSG", b"CLUSTER", *TIMER_NAMES))
_TAG_CODES_MAX = 10_000
_SUFFIXES_MAX = 64
"""Maximum batch property texts remembered: mostly WAIT alone; 2 MiB of the longest."""
_UNIQUE = b"UNIQ_KEY\x01"
_TIMER_IN_BATCH = "a batch cannot hold a timer: send messages with TIMER_ properties one by one"

PartKnown: TypeAlias = tuple[bytes, int, tuple[bytes, ...]]
"""Text appended to a record's own, tags code, index keys except UNIQ_KEY."""

_Like: TypeAlias = tuple[bytes, int, int, bytes, PartKnown]
"""Text before the key, positions of the start and end of the key, text after it."""


class Redirect(NamedTuple):
    """Redirection of a record from its sender's topic and queue."""

    topic: str
    queue_id: int
    delay_ms: int
    """Delay after the store time, ms; 0 for a half message."""
    due_ms: int = 0
    """Due time of a timer; 0 for other messages."""


_TO_HALVES = Redirect(HALF_TOPIC, 0, 0)


@dataclass(slots=True)
class BatchSuffix:
    """Properties of a batch, appended to those of each record."""

    text: bytes
    pairs: dict[bytes, bytes]
    waits: bool
    """Whether the answer waits for flush and replica."""
    has_shown: bool
    """Whether it contains a name from which index keys or the tags code are made."""
    behind: bytes = field(init=False)
    """The text with a separator before it."""
    like: _Like = (b"", 0, 0, b"", (b"", 0, ()))
    """Form of the previous record, to compare the next one with (admission.py)."""

    def __post_init__(self) -> None:
        self.behind = b"\x02" + self.text

    def expect_like(self, own: bytes, unique: bytes, known: PartKnown) -> None:
        """Expect the next texts to differ only in a UNIQ_KEY of the same length."""
        name_at = own.find(_UNIQUE + unique)
        key_at = name_at + len(_UNIQUE)
        key_end = key_at + len(unique)
        if name_at == 0 or own[name_at - 1 : name_at] == b"\x02":
            self.like = own[:key_at], key_at, key_end, own[key_end:], known


Prepared = tuple[bytes, int, tuple[bytes, ...], bool, int, Redirect | None]
"""Stored properties, tags code, index keys, waits for flush and replica, sys_flag, redirect."""


class PropertyRewriter:
    """Rewriter of clients' properties into their stored form."""

    def __init__(
        self, cluster: str, delays_ms: Sequence[int], timers: TimerRules | None = None
    ) -> None:
        """Create the rewriter; without `timers`, no message is a timer."""
        self._timers = timers
        self._cluster = cluster.encode()
        self._cluster_suffix = b"\x02CLUSTER\x01" + self._cluster
        self._delays_ms = delays_ms
        self._tag_codes: dict[bytes, int] = {}
        self._shapes, self._batch_shapes = PropertyShapes(), PropertyShapes()
        self._redirected_shapes = PropertyShapes()
        self._suffixes: dict[bytes, BatchSuffix] = {}
        self.topics_with_cut_keys: set[str] = set()
        """Topics of messages with more KEYS words than are indexed; the reader empties it."""
        self.batch_topic = ""
        """Topic of the batch that `batch_part` cuts."""

    def prepare(self, topic: str, queue_id: int, sys_flag: int, properties: bytes) -> Prepared:
        """Prepare the properties of one message; 1.0 µs for a plain one with four properties.

        Raises RemoteError for a DELAY that Java cannot parse: no official broker could read it.
        """
        cut = self._shapes.cut(properties)
        if cut is None:
            cut = self._redirected_shapes.cut(properties)
            redirect = None if cut is None else self._redirect(sys_flag, properties)
            if cut is None or redirect is None:
                return self._parsed(topic, queue_id, sys_flag, properties)
            _, _, unique, keys, tags = cut
            stored = self._redirected_text(topic, queue_id, properties.removesuffix(b"\x02"))
            if redirect.topic == HALF_TOPIC:
                sys_flag &= ~TRANSACTION_MASK
        else:
            before, behind, unique, keys, tags = cut
            redirect, stored = None, before + behind + self._cluster_suffix
        code = 0 if not tags else self._tag_codes.get(tags)
        if code is None:
            code = self._learn_tag(tags)
        if not keys:
            words: tuple[bytes, ...] = (unique,) if unique else ()
        elif b" " in keys:
            words = (*((unique,) if unique else ()), *self._words_of(topic, keys))
        else:
            words = (unique, keys) if unique else (keys,)
        return stored, code, words, True, sys_flag, redirect

    def _redirect(self, sys_flag: int, properties: bytes) -> Redirect | None:
        """Return the redirection of a message with TRAN_MSG or DELAY.

        Return None if its pairs must decide.
        """
        text = b"\x02%b\x02" % properties
        level_at = text.find(_DELAY)
        if level_at >= 0:
            level_at += len(_DELAY)
            level = delay_level(text[level_at : text.find(b"\x02", level_at)])
        if _TRAN_MSG_TRUE in text:
            return _TO_HALVES
        if level_at < 0 or b"\x02TRAN_MSG\x01" in text:
            return None
        kind = sys_flag & TRANSACTION_MASK
        if not 0 < level <= len(self._delays_ms) or kind not in (0, TRANSACTION_COMMIT):
            return None
        return Redirect(SCHEDULE_TOPIC, level - 1, self._delays_ms[level - 1])

    def _redirected_text(self, topic: str, queue_id: int, properties: bytes) -> bytes:
        return b"%b%b\x02REAL_TOPIC\x01%b\x02REAL_QID\x01%d" % (
            properties,
            self._cluster_suffix,
            topic.encode(),
            queue_id,
        )

    def _parsed(self, topic: str, queue_id: int, sys_flag: int, properties: bytes) -> Prepared:
        """Prepare a text with other names than the previous message."""
        pairs = pairs_of(properties)
        separators = properties.count(b"\x02")
        canonical = len(pairs) == separators + 1
        if not canonical and len(pairs) == separators and properties.endswith(b"\x02"):
            properties, canonical = properties[:-1], True
        waits, redirect = True, None
        if canonical and _SPECIAL.isdisjoint(pairs):
            self._shapes.learn(properties, pairs)
            if b"WAIT" in pairs:
                waits = pairs[b"WAIT"].lower() == b"true"
                properties = _without_wait(properties, pairs)
            stored = properties + self._cluster_suffix if properties else self._cluster_suffix[1:]
        else:
            if canonical and _ADDED.isdisjoint(pairs) and TIMER_NAMES.isdisjoint(pairs):
                self._redirected_shapes.learn(properties, pairs)
            stored, waits, sys_flag, redirect = self._rewritten(topic, queue_id, sys_flag, pairs)
        tags = pairs.get(b"TAGS")
        code = 0 if tags is None else self._tag_codes.get(tags)
        if code is None:
            code = self._learn_tag(tags or b"")
        return stored, code, self._keys_of(topic, pairs), waits, sys_flag, redirect

    def _keys_of(self, topic: str, pairs: dict[bytes, bytes]) -> tuple[bytes, ...]:
        unique = pairs.get(b"UNIQ_KEY")
        words = self._words_of(topic, pairs.get(b"KEYS", b""))
        return tuple(words) if unique is None else (unique, *words)

    def _words_of(self, topic: str, keys: bytes) -> list[bytes]:
        if keys.count(b" ") >= INDEXED_WORDS_MAX:
            self.topics_with_cut_keys.add(topic)
        return words_of(keys)

    def _learn_tag(self, tags: bytes) -> int:
        code = tags_code(tags.decode("utf-8", "replace"))
        if len(tags) > CACHED_TAG_CHARS:  # 10,000 of the longest take 320 MiB
            return code
        if len(self._tag_codes) >= _TAG_CODES_MAX:
            self._tag_codes.clear()
        self._tag_codes[tags] = code
        return code

    def _rewritten(
        self, topic: str, queue_id: int, sys_flag: int, pairs: dict[bytes, bytes]
    ) -> tuple[bytes, bool, int, Redirect | None]:
        """Format the text again, for any message but a plain canonical one.

        Raises RefusedError for an impossible timer. That of a half message is checked here, too,
        because its commit cannot be refused.
        """
        pairs = dict(pairs)
        pairs[b"CLUSTER"] = self._cluster
        waits = pairs.get(b"WAIT", b"true").lower() == b"true"
        real = {b"REAL_TOPIC": topic.encode(), b"REAL_QID": b"%d" % queue_id}
        level = delay_level(pairs.get(b"DELAY"))
        is_half, kind, due_ms = _is_half(pairs), sys_flag & TRANSACTION_MASK, 0
        is_plain = kind in (0, TRANSACTION_COMMIT)
        timers = self._timers
        if timers is not None and level <= 0 and (is_half or is_plain) and timers.is_asked(pairs):
            due_ms = timers.due_ms(pairs)
        if is_half:
            pairs |= real
            return _text(pairs), waits, sys_flag & ~TRANSACTION_MASK, _TO_HALVES
        if level > 0 and is_plain:
            pairs = {name: value for name, value in pairs.items() if name not in TIMER_NAMES}
            redirect = delayed(pairs, topic, queue_id, level, self._delays_ms)
            return _text(pairs), waits, sys_flag, redirect
        if timers is not None and due_ms:
            redirect, end = timer_redirect(pairs, topic, queue_id, due_ms, timers)
            return _text(pairs) + end, waits, sys_flag, redirect
        pairs.pop(b"WAIT", None)
        return _text(pairs), waits, sys_flag, None

    def is_half(self, properties: bytes) -> bool:
        if b"TRAN_MSG" not in properties:
            return False
        pairs: dict[bytes, bytes] = dict(find_pairs(properties))
        return _is_half(pairs)

    def batch_suffix(self, properties: bytes) -> BatchSuffix:
        """Return the properties of a batch as a suffix for its records.

        Raises RefusedError for a timer.
        """
        suffix = self._suffixes.get(properties)
        if suffix is None:
            pairs = dict(find_pairs(properties))
            self._refuse_timer_in_batch(pairs)
            pairs[b"CLUSTER"] = self._cluster
            waits = pairs.get(b"WAIT", b"true").lower() == b"true"
            if len(self._suffixes) >= _SUFFIXES_MAX:
                self._suffixes.clear()
            suffix = BatchSuffix(_text(pairs), pairs, waits, not _SHOWN.isdisjoint(pairs))
            self._suffixes[properties] = suffix
        return suffix

    def batch_part(self, own: bytes, suffix: BatchSuffix) -> tuple[bytes, int, tuple[bytes, ...]]:
        """Return the text appended to a record's own properties, its tags code and index keys.

        If a name is in both texts, the value of the batch counts, because it comes last. Raises
        RemoteError for a DELAY that Java cannot parse, and RefusedError for a timer: the records of
        a batch are stored in one queue.
        """
        text = suffix.text if not own or own.endswith(b"\x02") else suffix.behind
        cut = None if suffix.has_shown else self._batch_shapes.cut(own)
        if cut is not None:
            _, _, unique, keys, tag = cut
            words = tuple(self._words_of(self.batch_topic, keys))
            code = 0 if not tag else self._tag_codes.get(tag)
            if code is None:
                code = self._learn_tag(tag)
            if not unique:
                return text, code, words
            suffix.expect_like(own, unique, (text, code, words))
            return text, code, (unique, *words)
        pairs = dict(find_pairs(own))
        if b"DELAY" in pairs:
            delay_level(pairs[b"DELAY"])
        elif TIMER_NAMES.isdisjoint(pairs):
            self._batch_shapes.learn(own, pairs)
        pairs |= suffix.pairs
        self._refuse_timer_in_batch(pairs)
        tags = pairs.get(b"TAGS")
        code = 0 if tags is None else self._tag_codes.get(tags)
        if code is None:
            code = self._learn_tag(tags or b"")
        return text, code, self._keys_of(self.batch_topic, pairs)

    def _refuse_timer_in_batch(self, pairs: dict[bytes, bytes]) -> None:
        if self._timers is not None and self._timers.is_asked(pairs):
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, _TIMER_IN_BATCH)

    def is_delayed(self, properties: bytes) -> bool:
        """Return whether the send names a delay level. Raises RemoteError as `delay_level` does."""
        return (
            b"DELAY" in properties and delay_level(dict(find_pairs(properties)).get(b"DELAY")) > 0
        )


def delayed(
    pairs: dict[bytes, bytes], topic: str, queue_id: int, level: int, delays_ms: Sequence[int]
) -> Redirect:
    """Return the redirection of a delayed message; add its real topic and queue to `pairs`."""
    if level > len(delays_ms):
        level = len(delays_ms)
        pairs[b"DELAY"] = b"%d" % level
    pairs.pop(TIMER_OUT_MS, None)  # else it could be read as a timer
    pairs |= {b"REAL_TOPIC": topic.encode(), b"REAL_QID": b"%d" % queue_id}
    return Redirect(SCHEDULE_TOPIC, level - 1, delays_ms[level - 1])


def timer_redirect(
    pairs: dict[bytes, bytes], topic: str, queue_id: int, due_ms: int, timers: TimerRules
) -> tuple[Redirect, bytes]:
    """Return the redirection of a timer, and the end of its text; add the rest to `pairs`."""
    level, delay_ms = timers.level(due_ms)
    pairs.pop(TIMER_OUT_MS, None)
    pairs |= {b"DELAY": b"%d" % level, b"REAL_TOPIC": topic.encode(), b"REAL_QID": b"%d" % queue_id}
    return Redirect(SCHEDULE_TOPIC, level - 1, delay_ms, due_ms), due_property(due_ms)


def _without_wait(properties: bytes, pairs: dict[bytes, bytes]) -> bytes:
    """Drop the WAIT pair; the common value is cut out as bytes."""
    if properties.startswith(b"WAIT\x01"):
        end = properties.find(b"\x02")
        return b"" if end < 0 else properties[end + 1 :]
    if pairs[b"WAIT"] == b"true":
        at = properties.find(b"\x02" + _WAIT_TRUE)
        return properties[:at] + properties[at + 1 + len(_WAIT_TRUE) :]
    return _text({name: value for name, value in pairs.items() if name != b"WAIT"})


def _text(pairs: dict[bytes, bytes]) -> bytes:
    return b"\x02".join(name + b"\x01" + value for name, value in pairs.items())


def _is_half(pairs: dict[bytes, bytes]) -> bool:
    return pairs.get(b"TRAN_MSG", b"").lower() == b"true"


def delay_level(text: bytes | None) -> int:
    """Return the number of a DELAY property; 0 without one.

    Raises RemoteError with the code and text of 4.9.7 if Java cannot parse it as an int.
    """
    try:
        return int_in(text) if text is not None else 0
    except NumberFormatError as error:
        raise RemoteError(ResponseCode.SYSTEM_ERROR, str(error)) from None


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
