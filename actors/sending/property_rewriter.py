"""Preparation of a send: its properties as they are stored, and where the record really goes.

4.9.7 parses the property text into a hash map, adds CLUSTER, drops WAIT and writes the text anew.
Here the text keeps the client's order; a text that is already canonical is edited as bytes, any
other is parsed and written again.  A delayed message goes to SCHEDULE_TOPIC_XXXX, a half message to
RMQ_SYS_TRANS_HALF_TOPIC, each with its real topic and queue in its properties.

Source: SendMessageProcessor.asyncSendMessage, CommitLog.asyncPutMessage,
TransactionalMessageBridge.parseHalfMessageInner.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.java_numbers import NumberFormatError, int_in
from protocol.property_shapes import PropertyShapes, find_pairs, pairs_of
from protocol.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from protocol.tags import tags_code
from protocol.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from storage.dispatching.dispatch import INDEXED_WORDS_MAX, words_of

_WAIT_TRUE = b"WAIT\x01true"
_TRAN_MSG_TRUE = b"\x02TRAN_MSG\x01true\x02"
_DELAY = b"\x02DELAY\x01"
_SHOWN = frozenset((b"UNIQ_KEY", b"KEYS", b"TAGS"))
_ADDED = frozenset((b"CLUSTER", b"REAL_TOPIC", b"REAL_QID"))
"""What the text of a redirected message gets behind its own, where it does not have it."""
_SPECIAL = frozenset((b"DELAY", b"TRAN_MSG", b"CLUSTER"))
_TAG_CODES_MAX = 10_000
_SUFFIXES_MAX = 64
"""Properties of batches remembered: mostly WAIT alone; 2 MiB of the longest."""
_UNIQUE = b"UNIQ_KEY\x01"

PartKnown: TypeAlias = tuple[bytes, int, tuple[bytes, ...]]
"""text behind a record's own, tags code, index keys but UNIQ_KEY"""

_Like: TypeAlias = tuple[bytes, int, int, bytes, PartKnown]
"""text up to the key, positions where the key begins and ends, text behind it"""


class Redirect(NamedTuple):
    """A record that does not go where its sender said."""

    topic: str
    queue_id: int
    delay_ms: int
    """How long after the store time it is due; 0 for a half message."""


_TO_HALVES = Redirect(HALF_TOPIC, 0, 0)


@dataclass(slots=True)
class BatchSuffix:
    """The properties of a batch: every record gets them behind its own."""

    text: bytes
    pairs: dict[bytes, bytes]
    waits: bool
    """For the disk and a slave."""
    has_shown: bool
    """It has a name of which a record's index keys or tags code are made."""
    behind: bytes = field(init=False)
    """The text with a separator before it."""
    like: _Like = (b"", 0, 0, b"", (b"", 0, ()))
    """Form of the record before, with which the next one is compared (batch_parts.py)."""

    def __post_init__(self) -> None:
        self.behind = b"\x02" + self.text

    def expect_like(self, own: bytes, unique: bytes, known: PartKnown) -> None:
        """The next records may have this text, with another UNIQ_KEY as long as this one."""
        name_at = own.find(_UNIQUE + unique)
        key_at = name_at + len(_UNIQUE)
        key_end = key_at + len(unique)
        if name_at == 0 or own[name_at - 1 : name_at] == b"\x02":
            self.like = own[:key_at], key_at, key_end, own[key_end:], known


Prepared = tuple[bytes, int, tuple[bytes, ...], bool, int, Redirect | None]
"""stored properties, tags code, index keys, waits for flush and replica, sys_flag, redirect"""


class PropertyRewriter:
    """Turns the properties a client sent into those that are stored."""

    def __init__(self, cluster: str, delays_ms: Sequence[int]) -> None:
        self._cluster = cluster.encode()
        self._cluster_suffix = b"\x02CLUSTER\x01" + self._cluster
        self._delays_ms = delays_ms
        self._tag_codes: dict[bytes, int] = {}
        self._shapes, self._batch_shapes = PropertyShapes(), PropertyShapes()
        self._redirected_shapes = PropertyShapes()
        self._suffixes: dict[bytes, BatchSuffix] = {}
        self.topics_with_cut_keys: set[str] = set()
        """Topics of messages with more words in KEYS than are indexed; its reader empties it."""
        self.batch_topic = ""
        """The topic of the batches whose parts come next."""

    def prepare(self, topic: str, queue_id: int, sys_flag: int, properties: bytes) -> Prepared:
        """One message's share of the work; 1.0 µs for a plain message with four properties.

        Raises RemoteError for a DELAY that is no number to Java: no official broker could read it.
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
        """Where a message with TRAN_MSG or DELAY goes; None: only its pairs tell."""
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
        """The same for a text whose names are not those of the message before."""
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
            if canonical and _ADDED.isdisjoint(pairs):
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
        if len(self._tag_codes) >= _TAG_CODES_MAX:
            self._tag_codes.clear()
        code = self._tag_codes[tags] = tags_code(tags.decode("utf-8", "replace"))
        return code

    def _rewritten(
        self, topic: str, queue_id: int, sys_flag: int, pairs: dict[bytes, bytes]
    ) -> tuple[bytes, bool, int, Redirect | None]:
        """The text made anew, for what is delayed, transactional or not canonical."""
        pairs = dict(pairs)
        pairs[b"CLUSTER"] = self._cluster
        waits = pairs.get(b"WAIT", b"true").lower() == b"true"
        real = {b"REAL_TOPIC": topic.encode(), b"REAL_QID": b"%d" % queue_id}
        level = delay_level(pairs.get(b"DELAY"))
        if _is_half(pairs):
            pairs |= real
            return _text(pairs), waits, sys_flag & ~TRANSACTION_MASK, _TO_HALVES
        kind = sys_flag & TRANSACTION_MASK
        if level > 0 and kind in (0, TRANSACTION_COMMIT):
            redirect = delayed(pairs, topic, queue_id, level, self._delays_ms)
            return _text(pairs), waits, sys_flag, redirect
        pairs.pop(b"WAIT", None)
        return _text(pairs), waits, sys_flag, None

    def is_half(self, properties: bytes) -> bool:
        """Whether the send starts a transaction."""
        if b"TRAN_MSG" not in properties:
            return False
        pairs: dict[bytes, bytes] = dict(find_pairs(properties))
        return _is_half(pairs)

    def batch_suffix(self, properties: bytes) -> BatchSuffix:
        """What the properties of a batch mean to each of its records."""
        suffix = self._suffixes.get(properties)
        if suffix is None:
            pairs = dict(find_pairs(properties))
            pairs[b"CLUSTER"] = self._cluster
            waits = pairs.get(b"WAIT", b"true").lower() == b"true"
            if len(self._suffixes) >= _SUFFIXES_MAX:
                self._suffixes.clear()
            suffix = BatchSuffix(_text(pairs), pairs, waits, not _SHOWN.isdisjoint(pairs))
            self._suffixes[properties] = suffix
        return suffix

    def batch_part(self, own: bytes, suffix: BatchSuffix) -> tuple[bytes, int, tuple[bytes, ...]]:
        """What one record of a batch gets behind its own properties; tags code and index keys.

        Of a name that stands in both texts the batch's value counts, for it comes last. Raises
        RemoteError for a DELAY that is no number to Java.
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
        else:
            self._batch_shapes.learn(own, pairs)
        pairs |= suffix.pairs
        tags = pairs.get(b"TAGS")
        code = 0 if tags is None else self._tag_codes.get(tags)
        if code is None:
            code = self._learn_tag(tags or b"")
        return text, code, self._keys_of(self.batch_topic, pairs)

    def is_delayed(self, properties: bytes) -> bool:
        """Whether the send names a delay level. Raises RemoteError as `delay_level`."""
        return (
            b"DELAY" in properties and delay_level(dict(find_pairs(properties)).get(b"DELAY")) > 0
        )


def delayed(
    pairs: dict[bytes, bytes], topic: str, queue_id: int, level: int, delays_ms: Sequence[int]
) -> Redirect:
    """Where a message with a delay level waits; `pairs` gets what says where it belongs."""
    if level > len(delays_ms):
        level = len(delays_ms)
        pairs[b"DELAY"] = b"%d" % level
    pairs |= {b"REAL_TOPIC": topic.encode(), b"REAL_QID": b"%d" % queue_id}
    return Redirect(SCHEDULE_TOPIC, level - 1, delays_ms[level - 1])


def _without_wait(properties: bytes, pairs: dict[bytes, bytes]) -> bytes:
    """Drops the WAIT pair; the common value is cut out as bytes."""
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
    """Return the number that a DELAY property holds; 0 without one.

    Raises RemoteError with the code and text of 4.9.7 for what is no int to Java.
    """
    try:
        return int_in(text) if text is not None else 0
    except NumberFormatError as error:
        raise RemoteError(ResponseCode.SYSTEM_ERROR, str(error)) from None
