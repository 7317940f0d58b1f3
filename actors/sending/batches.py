"""Batches: their messages as parts of records, and long batches in pieces.

A batch of 40,000 messages would keep all other clients waiting for a quarter of a second. A long
one is therefore prepared and then appended in pieces, one piece in a turn of PutMessage. Nothing is
appended before the whole batch is prepared, so that one bad message refuses it as a whole, as in
4.9.7. Messages of others may be stored between its pieces; its own keep their order.
"""

from collections import deque
from dataclasses import dataclass, field
from zlib import crc32

from actors.network.hooks import SendContext
from actors.network.messages import Sends, StreamPeer
from actors.sending.property_rewriter import BatchSuffix, PropertyRewriter
from actors.sending.put_answers import PutAnswers, SendPut
from actors.sending.send_rules import (
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    RefusedError,
    TopicState,
    illegal_message,
)
from protocol.batch import decode_batch
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.send_values import Send
from storage.log.commit_log import BatchPart, PutBatch

SHORT_BYTES = 16 << 10
"""Maximum bytes of a batch that is prepared and appended at once."""
TURN_COST_MAX = 8_000
"""Cost of the short batches of one turn; later ones wait as long ones do. A message costs 1, and so
does each of its index keys: 1 to 4 µs on CPython."""
PIECE_COST = 2_000
"""Cost of one piece of a long batch."""
COSTLY_BYTES = 32
"""Bytes of properties that cost 1 while their keys are unknown."""


@dataclass(slots=True, eq=False)
class MessageBatch:
    """A batch from its admission to its answer."""

    sends: Sends
    send: Send
    context: SendContext | None
    state: TopicState
    queue_id: int
    """Queue id in the answer; the records may be stored in another queue."""
    stored_queue_id: int
    sys_flag: int
    suffix: BatchSuffix
    records_bytes_max: int
    body_bytes_max: int
    pieces: list[PutBatch] = field(default_factory=list)
    """Pieces made so far, each appended before the next one is made."""
    _messages: list[tuple[bytes, bytes, int]] | None = None
    _prepared_bytes: int = 0
    _parts: list[BatchPart] = field(default_factory=list)
    _codes: list[int] = field(default_factory=list)
    _keys: list[tuple[bytes, ...]] = field(default_factory=list)
    _taken_count: int = 0

    # --- before anything is appended

    def prepare(self, preparer: PropertyRewriter) -> None:
        """Prepare all messages.

        Raises RefusedError, or RemoteError for a body that cannot be cut.
        """
        self._add(decode_batch(self.send.body), preparer)
        self._check()

    def prepare_some(self, preparer: PropertyRewriter) -> bool:
        """Prepare the messages of a piece; return whether all are prepared.

        Raises what `prepare` raises.
        """
        if self._messages is None:
            self._messages = decode_batch(self.send.body)
        messages, begin, cost = self._messages, len(self._parts), 0
        end = begin
        while end < len(messages) and cost < PIECE_COST:
            cost += 1 + len(messages[end][1]) // COSTLY_BYTES
            end += 1
        self._add(messages[begin:end], preparer)
        if end < len(messages):
            return False
        self._check()
        return True

    def _add(self, messages: list[tuple[bytes, bytes, int]], preparer: PropertyRewriter) -> None:
        preparer.batch_topic = self.state.config.topic_name
        suffix, prepared_bytes = self.suffix, self._prepared_bytes
        parts, codes, all_keys = self._parts, self._codes, self._keys
        before, key_at, key_end, behind_key, known = suffix.like
        for each, own, flag in messages:
            key = own[key_at:key_end]
            # Most messages differ from the one before only in their UNIQ_KEY: 0.3 µs instead of
            # 1.0. A key of letters and digits contains no separator.
            if own[:key_at] == before and own[key_end:] == behind_key and key.isalnum():
                behind, code, words = known
                keys = (key, *words) if words else (key,)
            else:
                behind, code, keys = preparer.batch_part(own, suffix)
                before, key_at, key_end, behind_key, known = suffix.like
            properties_bytes = len(own) + len(behind)
            if properties_bytes > PROPERTIES_BYTES_MAX:
                raise illegal_message(self.body_bytes_max)
            prepared_bytes += len(each) + properties_bytes
            parts.append((flag, crc32(each) & 0x7FFFFFFF, each, own, behind))
            codes.append(code)
            all_keys.append(keys)
        self._prepared_bytes = prepared_bytes

    def _check(self) -> None:
        self._messages = None
        if self._prepared_bytes + len(self._parts) * OVERHEAD_BYTES > self.records_bytes_max:
            raise illegal_message(self.body_bytes_max)
        if not self._parts:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "the batch holds no message")

    # --- records

    @property
    def cost(self) -> int:
        return len(self._keys) + sum(map(len, self._keys))

    @property
    def is_taken(self) -> bool:
        """Whether the last piece has been made."""
        return self._taken_count == len(self._parts)

    def whole(self) -> PutBatch:
        """Return all records of a prepared batch."""
        return self._records(self._parts, self._prepared_bytes, self._codes, self._keys)

    def next_piece(self) -> PutBatch:
        """Return the next records of a prepared batch."""
        begin, cost = self._taken_count, 0
        end = begin
        while end < len(self._parts) and cost < PIECE_COST:
            cost += 1 + len(self._keys[end])
            end += 1
        self._taken_count = end
        parts = self._parts[begin:end]
        parts_bytes = sum([len(each[2]) + len(each[3]) + len(each[4]) for each in parts])
        self.pieces.append(
            self._records(parts, parts_bytes, self._codes[begin:end], self._keys[begin:end])
        )
        return self.pieces[-1]

    def _records(
        self,
        parts: list[BatchPart],
        parts_bytes: int,
        codes: list[int],
        keys: list[tuple[bytes, ...]],
    ) -> PutBatch:
        return PutBatch(
            topic=self.state.topic,
            queue_id=self.stored_queue_id,
            queue_offset=0,
            sys_flag=self.sys_flag,
            born_timestamp=self.send.born_timestamp,
            born_host=self.sends.peer.host,
            reconsume_times=self.send.tail.reconsume_times,
            parts=parts,
            parts_bytes=parts_bytes,
            codes=codes,
            keys=keys,
        )


class BatchPiece(SendPut):
    """A piece of a long batch. The last one answers for the whole batch."""

    __slots__ = ("batch", "is_last")
    is_last: bool  # type: ignore[misc]

    def __init__(self, batch: MessageBatch, group: PutBatch, arrived_ms: float) -> None:
        super().__init__(
            batch.state,
            group,
            batch.sends,
            batch.send,
            batch.queue_id,
            batch.suffix.waits,
            batch.context,
            arrived_ms,
        )
        self.batch = batch
        self.is_last = batch.is_taken

    @property
    def offsets(self) -> list[int]:
        return [offset for piece in self.batch.pieces for offset in piece.offsets]

    @property
    def queue_offset(self) -> int:
        return self.batch.pieces[0].queue_offset

    @property
    def record_bytes(self) -> int:
        return sum(piece.record_bytes for piece in self.batch.pieces)


class LongBatches:
    """The long batches that PutMessage works on, one after another.

    The connections take turns, so that one with many of them delays others by one at a time. Only
    the batch in work is decoded.
    """

    def __init__(self, preparer: PropertyRewriter, answers: PutAnswers) -> None:
        self._preparer, self._answers = preparer, answers
        self.waiting: dict[StreamPeer, deque[MessageBatch]] = {}
        """Batches by their connection; the first batch of the first connection is in work."""

    def add(self, batch: MessageBatch) -> None:
        self.waiting.setdefault(batch.sends.peer, deque()).append(batch)

    def next_piece(self, arrived_ms: float) -> BatchPiece | None:
        """Continue with the batch in work; return its next piece if it is prepared.

        A batch that cannot be prepared is refused.
        """
        batch = next(iter(self.waiting.values()))[0]
        if not batch.pieces:
            try:
                if not batch.prepare_some(self._preparer):
                    return None
            except (RefusedError, RemoteError) as error:
                self.refuse(batch, error)
                return None
        piece = BatchPiece(batch, batch.next_piece(), arrived_ms)
        if piece.is_last:
            self._remove(batch)
        return piece

    def _remove(self, batch: MessageBatch) -> None:
        """Remove a batch, and put the rest of its connection behind the other connections."""
        peer = batch.sends.peer
        rest = self.waiting.pop(peer, None)
        if rest is not None:
            if batch in rest:
                rest.remove(batch)
            if rest:
                self.waiting[peer] = rest

    def refuse(self, batch: MessageBatch, error: RefusedError | RemoteError) -> None:
        """Answer that the batch is not stored; pieces that are stored remain."""
        self._remove(batch)
        self._answers.refused(batch.sends, batch.send, error, batch.context)
        batch.sends.hand_over()

    def refuse_all(self, error: RefusedError) -> None:
        """Refuse all that are not answered yet."""
        waiting, self.waiting = self.waiting, {}
        for batches in waiting.values():
            for batch in batches:
                if batch.sends.owed:
                    self.refuse(batch, error)
