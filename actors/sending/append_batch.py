"""A batch of checked sends becomes records of the log: offsets given, one write, entries kept.

A plain class; PutMessage owns the one there is.  Queue offsets are given here, at the last moment,
so that a send that is refused or parked leaves no hole.
"""

from collections.abc import Sequence
from zlib import crc32

from actors.network.hooks import SendContext
from actors.network.sends import Sends
from actors.sending.put_answers import Stored
from actors.sending.send_rules import TopicState
from protocol.send_wire import Send
from protocol.sysflag import TRANSACTION_PREPARED
from storage.commit_log import CommitLog, PutRecord
from storage.dispatch import DispatchEntry

Part = tuple[int, bytes, bytes, int, tuple[bytes, ...]]
"""flag, body, properties, tags code, index keys: one record of a send"""

Pending = tuple[
    Sends, Send, TopicState, int, int, int, int, bool, Sequence[Part], SendContext | None, float
]
"""whose, which, where, queue_id stored, queue_id as asked for, sys_flag, delay_ms, waits, parts,
hook context, when it arrived (monotonic ms)"""


class AppendBatch:
    """Appends pending sends and gives what is known of them afterwards."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def append(
        self, pending: Sequence[Pending], now_ms: int
    ) -> tuple[list[Stored], list[bool], list[DispatchEntry]]:
        """Appends a prefix of `pending`: as much as the current file takes.

        Gives, for each send stored: what its answer needs, whether it waits for the disk; and for
        each record its dispatch entry. Fewer than asked: the next file is not there yet.
        Raises OSError or StoreError when the disk refuses; nothing is changed then.
        """
        groups = self._groups(pending)
        try:
            placed = self._log.append(groups, now_ms)
        except BaseException:
            self._give_back(pending, groups, 0)
            raise
        store_timestamp = self._log.last_store_timestamp
        stored: list[Stored] = []
        waits: list[bool] = []
        entries: list[DispatchEntry] = []
        done = 0
        for item, records in zip(pending, groups, strict=True):
            if done == len(placed):
                break
            sends, send, state, _, queue_id, sys_flag, delay_ms, wait, parts, context, _ = item
            offsets: list[int] = []
            send_bytes = 0
            for record, part in zip(records, parts):  # noqa: B905  0.1 µs a send
                offset, size = placed[done]
                done += 1
                offsets.append(offset)
                send_bytes += size
                entries.append(
                    (
                        record[0],
                        record[1],
                        record[2],
                        offset,
                        size,
                        store_timestamp + delay_ms if delay_ms else part[3],
                        store_timestamp,
                        sys_flag,
                        part[4],
                    )
                )
            puts = state.puts
            puts.count += len(offsets)
            puts.bytes += send_bytes
            puts.times += 1
            stored.append((sends, send, offsets, queue_id, records[0][2], send_bytes, context))
            waits.append(wait)
        if len(stored) < len(pending):
            self._give_back(pending, groups, len(stored))
        return stored, waits, entries

    def _groups(self, pending: Sequence[Pending]) -> list[list[PutRecord]]:
        """The records of each send, with the next offsets of their queues."""
        groups: list[list[PutRecord]] = []
        for sends, send, state, queue_id, _, sys_flag, _, _, parts, _, _ in pending:
            next_offsets = state.next_offsets
            if sys_flag & TRANSACTION_PREPARED:
                offset = 0  # prepared or rolled back: in no queue, so without a number
            else:
                offset = next_offsets.get(queue_id, 0)
                next_offsets[queue_id] = offset + len(parts)
            records: list[PutRecord] = []
            for flag, body, properties, _, _ in parts:
                records.append(
                    (
                        state.topic,
                        queue_id,
                        offset,
                        flag,
                        sys_flag,
                        send[6],
                        sends.peer.host,
                        send[1].reconsume_times,
                        0,
                        body,
                        properties,
                        crc32(body) & 0x7FFFFFFF,
                    )
                )
                offset += 1
            groups.append(records)
        return groups

    def _give_back(
        self, pending: Sequence[Pending], groups: Sequence[Sequence[PutRecord]], done: int
    ) -> None:
        """Takes back the queue offsets of the sends that did not get into the log."""
        for item, records in zip(reversed(pending[done:]), reversed(groups[done:]), strict=True):
            if not item[5] & TRANSACTION_PREPARED:
                item[2].next_offsets[item[3]] -= len(records)
