"""The table of consumer offsets, by group and queue.

Owns: the offsets, consumerOffset.json, and the journal of its changes.
Receives: Request (connections); CommitOffset (PullMessage, Transactions); AdvanceOffsets
(Receipts); ResetOffsets (OffsetReset); MergeOffsets (SlaveSync); TopicsGone (TopicTable,
SlaveSync); GroupsGone, ForgetOffsets (GroupTable); ForgetTopic (TopicTable, CleanFiles);
TellOffsets (OffsetReset, ConsumeStats, QueueOffsets).
Sends: WriteFile (ConfigWriter); EncodeAnswer (TableEncoder); OffsetsTold, OffsetsAdvanced (the
requesting actor); answers of Receipts to the clients.

One-way commits and commits of pulls pass OffsetGuard and old_places.py, which recognize stale ones.
Commits in request form are stored as sent. All pass the limits of offset_limits.py. Offsets are
deleted with their topic. The file is saved every few seconds, after a reset or deletion, and at the
stop. A crash loses the latest commits of pulls. Progress of receives is in the journal
(offset_journal.py) before they are answered, so that only a power cut loses it. Messages of lost
commits are consumed again.

Source: broker/offset/ConsumerOffsetManager.java, ConsumerManageProcessor.java.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger, shown_names
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import Peer, Request
from actors.network.request import serves
from actors.tables.consumer_views import ConsumerView
from actors.tables.messages import (
    AdvanceOffsets,
    Answer,
    ChangeOn,
    CommitOffset,
    EncodeAnswer,
    ForgetOffsets,
    ForgetTopic,
    GroupsGone,
    MergeOffsets,
    OffsetsAdvanced,
    ResetOffsets,
    SearchOn,
    TellOffsets,
    TopicsGone,
    encode_later,
    send_answers,
)
from actors.tables.names import check_group_name, check_topic_name
from actors.tables.offset_changes import (
    UNPUBLISHED_MAX,
    DeletedAtMaster,
    LongChanges,
    search_steps,
    tell_cloned,
    topics_to_clone,
)
from actors.tables.offset_journal import OffsetJournal
from actors.tables.offset_limits import (
    OffsetBounds,
    OffsetCeiling,
    OffsetGuard,
    OffsetMoves,
    OffsetStats,
)
from actors.tables.offset_searches import Offsets, OffsetSearches, names_of
from actors.tables.old_places import FirstPulls, OldPlaces
from actors.tables.persisted import Then, TickedTable
from protocol.bodies_tables import ConsumerOffsetTable, TopicConfig
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.admin import CloneGroupOffsetHeader
from protocol.headers.client import (
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from protocol.table_rules import queue_id_fault
from protocol.topic_names import (
    GROUP_CHARS_MAX,
    TOPIC_CHARS_MAX,
    group_name_fault,
    topic_name_fault,
)
from storage.tables.offsets import (
    format_offsets,
    group_of,
    offset_key,
    parse_offsets,
    topic_of,
)

log = get_logger(__name__)


class ConsumerOffsets(TickedTable):
    """Offset table. Runs on the loop."""

    def __init__(
        self,
        path: str,
        *,
        interval_ms: int,
        starts_in_memory: Callable[[str, int], bool],
        offsets: SnapshotRef[Offsets],
        live_offsets: SnapshotRef[Offsets],
        moves: SnapshotRef[OffsetMoves],
        config_writer: ActorAddress,
        encoder: ActorAddress,
        consumers: SnapshotRef[Mapping[str, ConsumerView]],
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        guards: bool = True,
        stats: OffsetStats | None = None,
        ceiling: OffsetCeiling | None = None,
        bounds: OffsetBounds | None = None,
        old_places: OldPlaces | None = None,
        first_pulls: FirstPulls | None = None,
        journal: OffsetJournal,
    ) -> None:
        """Create the table.

        `starts_in_memory(topic, queue_id)` tells whether the queue is young: its min offset
        is 0 and its first message is recent enough to be in memory.

        `offsets` is published at every save and may be as old as that. `live_offsets` is
        the table itself, which changes at any time, as does `moves`. Without `guards`, every
        commit up to the end of its queue is stored, as in 4.9.7. `bounds` is None on a slave,
        which may have offsets beyond its messages.
        """
        super().__init__(path, config_writer)
        self._interval_ms, self._encoder, self._journal = interval_ms, encoder, journal
        self._unsent: list[Answer] = []
        """Answers that wait for the first save with a journal."""
        self._starts_in_memory = starts_in_memory
        self._published, self._live, self._moves = offsets, live_offsets, moves
        self._offsets: dict[str, dict[int, int]] = {}
        self._copy: dict[str, dict[int, int]] = {}
        """Last published copy; nothing in it ever changes."""
        self._changed = False
        self._searches = OffsetSearches(self._publish)
        self._changes = LongChanges(lambda: self.system.loop.round_count)
        self._unpublished: dict[str, None] = {}
        """Keys that have changed since the last copy."""
        self._consumers, self._topics = consumers, topics
        self._ceiling = ceiling
        self._bounds, self._old_places = bounds, old_places or OldPlaces()
        self._first_pulls = first_pulls or FirstPulls({}, 0.0)
        self._deleted = DeletedAtMaster()
        self._stats = stats or OffsetStats()
        self._guard = OffsetGuard(consumers, self._stats) if guards else None

    def on_start(self) -> None:
        loaded = self.load(parse_offsets)
        self._offsets = loaded.value.offset_table if loaded.value is not None else {}
        self._changed = loaded.is_to_be_saved
        generation = None if loaded.value is None else loaded.value.journal
        if replayed := self._journal.begin(self.system.disk, generation, self._offsets):
            log.info("offset journal replayed", entries=replayed, generation=generation)
        moved: list[str] = []
        if self._bounds is not None:
            if self.incarnation == 1:
                self._bounds.begin_empty(self._offsets)
            moved = self._bounds.move_back(self._offsets)
            self._changed |= bool(moved)
        self._journal.limit(None if self._bounds is None else self._bounds.end_of_key)
        self._live.value = self._offsets
        self._moves.value = OffsetMoves(self.system.clock.now_ms())
        self._unpublished = dict.fromkeys(self._offsets)
        self._publish()
        if self._ceiling is not None:
            self._ceiling.begin(self._offsets)
        self.save_every(self._interval_ms)
        if self._journal.is_used:
            self._changed = True
            self.save_changes()
            for key in moved:
                self._journal.restate(key, self._offsets[key])
            self._journal.write()

    @handles(CommitOffset)
    def on_commit(self, message: CommitOffset) -> None:
        """Store the offset of a pull."""
        peer = message.peer
        self._commit(message.group, message.topic, message.queue_id, message.offset, peer)

    @handles(AdvanceOffsets)
    def on_advance(self, message: AdvanceOffsets) -> None:
        """Store the offsets of messages that are settled one by one."""
        journal = self._journal
        for each in message.commits:
            key, queue_id = offset_key(each.topic, each.group), each.queue_id
            if self._offsets.get(key, {}).get(queue_id) != each.expected:
                continue
            if each.expected is None and each.topic not in self._topics.value:
                continue  # what expires in a deleted topic must not outlast it
            if each.offset == each.expected or self._set(
                each.group, each.topic, queue_id, each.offset
            ):
                journal.advance(key, queue_id, each.offset, each.settled)
        if message.commits:
            journal.write()
            was_used = journal.use()
            self._changed |= journal.is_paused
            if journal.is_long or not was_used:
                self.save_changes()
        message.reply_to.tell(OffsetsAdvanced(message.commits))
        if journal.is_waiting:
            self._unsent += message.answers
        else:
            send_answers(message.answers)

    @handles(MergeOffsets)
    def on_take_offsets(self, message: MergeOffsets) -> None:
        """Merge the master's offsets, in pieces if there are many."""
        self._change(self._merging(message.table.offset_table))

    def _merging(self, table: Mapping[str, Mapping[int, int]]) -> Iterator[None]:
        """Replace the offsets of the same keys; forget deleted groups and topics without any."""
        for key, queues in table.items():
            yield
            before = self._offsets.get(key)
            if before == queues:
                continue
            if self._ceiling and not self._ceiling.takes(queues, before, len(self._offsets)):
                self.log_dropped("offsets of the master not taken: too many", key=key[:200])
                continue
            self._offsets[key] = dict(queues)
            self._journal.replace(key, queues, before or ())
            self._note_changed(key)
            for queue_id, offset in queues.items():
                if before is None or before.get(queue_id) != offset:
                    self._note_moved(key, queue_id)
                    yield
        groups, topics = yield from self._deleted.missing_in(table)
        found: dict[str, list[str]] = {}
        for key in [*self._offsets] if groups or topics else ():
            yield
            topic, group = topic_of(key), group_of(key)
            if group in groups:
                self._drop(key)
            elif topic in topics:
                found.setdefault(topic, []).append(group)
        for topic in topics:
            yield
            yield from self._forgetting_in(topic, found.get(topic, ()))
        if groups or topics:
            log.info("offsets deleted as at the master", gone=shown_names([*groups, *topics]))
            self._publish()

    @handles(GroupsGone)
    def on_groups_gone(self, message: GroupsGone) -> None:
        self._deleted.note_groups(message)

    @handles(TopicsGone)
    def on_topics_gone(self, message: TopicsGone) -> None:
        self._deleted.note_topics(message)

    @handles(ForgetTopic)
    def on_forget_topic(self, message: ForgetTopic) -> None:
        """Delete the offsets of a topic, which may be created again at once with queues from 0."""
        self._change(self._forgetting_topic(message.topic, message.then), message.on_undelivered)

    def _forgetting_topic(self, topic: str, then: Then | None = None) -> Iterator[None]:
        """Delete the offsets in a topic and save the table, if there were any."""
        groups = [group for _, group in names_of(self._offsets, topic=topic)]
        yield from search_steps(self._offsets)
        yield from self._forgetting_in(topic, groups)
        if groups:
            log.info("offsets deleted", topic=topic, groups=len(groups))
            self._publish()
        if then is not None:
            self.save_changes(then) if groups else then("")

    def _forgetting_in(self, topic: str, groups: Sequence[str]) -> Iterator[None]:
        """Delete the offsets of these groups in a topic.

        Leave a mark for each, since live members may have positions that were not committed.
        """
        now_ms, views = self.system.clock.monotonic_ms(), self._consumers.value
        noting, bounds = self._old_places.noting, self._bounds
        ids = range(0) if bounds is None else bounds.queue_ids(topic)
        for group, view in views.items() if ids else ():
            if topic in view.subscriptions:
                yield from noting(topic, group, ids, {}, now_ms, view)
            yield
        for group in groups:
            queues, live = self._drop(offset_key(topic, group)), views.get(group)
            others = (each for each in (ids if live else ()) if each not in queues)
            yield from noting(topic, group, chain(queues, others), queues, now_ms, live)
            yield from search_steps(queues)

    def _drop(self, key: str) -> dict[int, int]:
        """Delete the offsets of a key and return them."""
        queues = self._offsets.pop(key, {})
        self._moves.value.by_key.pop(key, None)
        self._journal.replace(key, {}, queues)
        self._note_changed(key)
        return queues

    @handles(ForgetOffsets)
    def on_forget(self, message: ForgetOffsets) -> None:
        """Delete the offsets of a group in all topics."""
        self._change(self._forgetting(message.group))

    def _forgetting(self, group: str) -> Iterator[None]:
        end = offset_key("", group)
        gone = [key for key in self._offsets if key.endswith(end)]
        yield from search_steps(self._offsets)
        for key in gone:
            self._drop(key)
            yield
        if gone:
            log.info("offsets deleted", group=group, topics=len(gone))
            self._publish()

    @serves(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update(self, request: Request) -> RemotingCommand:
        """Commit an offset.

        One-way commits may be ignored as stale. A request is stored as sent; from a client
        that is not a member it is a reset.
        """
        header = UpdateConsumerOffsetHeader.decode(request.command.fields)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if request.command.is_oneway:
            self.begin_change()
            self._commit(group, topic, queue_id, header.commit_offset, request.peer)
        else:
            check_topic_name(topic)  # 4.9.7 stores offsets under any name and queue id
            check_group_name(group)
            if fault := queue_id_fault(queue_id):
                raise RemoteError(ResponseCode.SYSTEM_ERROR, fault)
            if refusal := self._refusal(group, topic, queue_id):
                raise refusal
            self.begin_change()
            guard, peer, offset = self._guard, request.peer, header.commit_offset
            consumes = guard is not None and guard.consumes(group, topic, peer)
            is_left = (topic, group, queue_id) in self._old_places.marks
            is_beyond = self._bounds is not None and offset > self._bounds.end(topic, queue_id)
            if consumes or (is_left and is_beyond):
                if self._is_from_elsewhere(group, topic, queue_id, offset, peer):
                    return request.command.answer(fields={})
            else:
                self._old_places.forget(topic, group, queue_id)
                is_member = guard is not None and guard.is_member(group, peer)
                if is_beyond and not is_member:  # an operator's order: messages are skipped
                    event = "consumer offset set behind the end of its queue"
                    about = _about(topic, queue_id, offset, peer)
                    self.system.rarely.warn(event, of=topic, group=group, **about)
                moved = offset != self._offset(group, topic, queue_id)
                if guard is not None and moved and not is_member:
                    guard.reset(group, topic, (queue_id,), self.system.clock.monotonic_ms())
            self._store(group, topic, queue_id, offset)
        return request.command.answer(fields={})

    @handles(ResetOffsets)
    def on_reset(self, message: ResetOffsets) -> None:
        """Set the offsets of a group, in pieces if there are many, and save them at once."""
        if self._guard is not None:
            now_ms = self.system.clock.monotonic_ms()
            self._guard.reset(message.group, message.topic, message.offsets, now_ms)
        self._change(self._resetting(message))

    def _resetting(self, message: ResetOffsets) -> Iterator[None]:
        for queue_id, offset in message.offsets.items():
            self._old_places.forget(message.topic, message.group, queue_id)
            self._store(message.group, message.topic, queue_id, offset)
            yield
        self.save_changes()

    def _change(self, steps: Iterator[None], refuse: Callable[[str], None] | None = None) -> None:
        if self._changes.begin(steps, refuse):
            self.system.loop.tell_in_next_round(self.address, ChangeOn())

    @handles(ChangeOn)
    def on_change_on(self, _: ChangeOn) -> None:
        if self._changes.go_on():
            self.system.loop.tell_in_next_round(self.address, ChangeOn())

    @serves(RequestCode.CLONE_GROUP_OFFSET)
    def clone(self, request: Request) -> None:
        """Copy the offsets of a group to another group, in one topic or in all.

        Missing topics are skipped, and topics to which the online source group does not
        subscribe. Many offsets are copied in pieces.
        """
        header = CloneGroupOffsetHeader.decode(request.command.fields)
        check_group_name(header.dest_group)
        self._change(self._cloning(request, header), request.refuse)

    def _cloning(self, request: Request, header: CloneGroupOffsetHeader) -> Iterator[None]:
        """Check all offsets, then copy them, then answer."""
        view = self._consumers.value.get(header.src_group)
        cloned, left_out = topics_to_clone(header, self._offsets, self._topics.value, view)
        yield from search_steps(self._offsets)
        for topic in cloned:
            for queue_id in [*self._offsets.get(offset_key(topic, header.src_group), ())]:
                if refusal := self._refusal(header.dest_group, topic, queue_id):
                    self.tell_of(refusal, request)
                    request.answer(refusal.code, remark=refusal.remark)
                    return
                yield
        self.begin_change()
        for topic in cloned:
            offsets = self._offsets.get(offset_key(topic, header.src_group))
            if offsets is not None:
                key = offset_key(topic, header.dest_group)
                before = self._offsets.get(key, {})
                if self._ceiling is not None:
                    self._ceiling.note_kept(len(offsets) - len(before))
                self._offsets[key] = dict(offsets)
                self._journal.replace(key, offsets, before)
                self._note_changed(key)
                for queue_id in [*offsets]:
                    self._old_places.forget(topic, header.dest_group, queue_id)
                    self._note_moved(key, queue_id)
                    yield
        tell_cloned(self.system.rarely, header, cloned, left_out)
        request.answer()

    @handles(TellOffsets, reads_only=True)
    def on_tell_offsets(self, message: TellOffsets) -> None:
        """Answer with a copy of the offsets; search a large table in steps."""
        if self._searches.answer(message, self._offsets):
            self.system.loop.tell_in_next_round(self.address, SearchOn())

    @handles(SearchOn, reads_only=True)
    def on_search_on(self, _: SearchOn) -> None:
        """Search the next entries for the first waiting request."""
        if self._searches.step():
            self.system.loop.tell_in_next_round(self.address, SearchOn())

    @serves(RequestCode.QUERY_CONSUMER_OFFSET)
    def query(self, request: Request) -> RemotingCommand:
        """Answer with the offset of a group; a new group starts a young queue at 0."""
        header = QueryConsumerOffsetHeader.decode(request.command.fields)
        offset = self._offset(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            if not self._starts_in_memory(header.topic, header.queue_id):
                remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                raise RemoteError(ResponseCode.QUERY_NOT_FOUND, remark)
            offset = 0
        return request.command.answer(fields=OffsetResponseHeader(offset).encode())

    @serves(RequestCode.GET_ALL_CONSUMER_OFFSET)
    def all_offsets(self, request: Request) -> RemotingCommand | None:
        """Answer a slave with the whole table; TableEncoder sends a large one."""
        if sum(map(len, self._offsets.values())) <= ENCODED_HERE_MAX:
            return request.command.answer(body=ConsumerOffsetTable(self._offsets).encode())
        answer = EncodeAnswer(request, ConsumerOffsetTable(self._publish()))
        encode_later(self._encoder, answer, len(self._offsets))
        return None

    def _commit(
        self, group: str, topic: str, queue_id: int, offset: int, peer: Peer | None
    ) -> None:
        """Store a commit unless it is stale; an unchanged offset needs no check."""
        stored = self._offsets.get(offset_key(topic, group), {}).get(queue_id)
        guard = self._guard
        is_news = offset != stored
        if peer and is_news and self._is_from_elsewhere(group, topic, queue_id, offset, peer):
            return
        if peer is not None and guard is not None and stored not in (None, offset):
            backward = offset < stored
            if guard.concerns(group, topic, queue_id, backward=backward):
                now_ms = self.system.clock.monotonic_ms()
                place = group, topic, queue_id
                if not guard.believes(*place, peer, now_ms, backward=backward):
                    about = {**_about(topic, queue_id, offset, peer), "stored": stored}
                    self._stats.ignore(self.system.rarely, "offset commit ignored", group, **about)
                    return
        self._store(group, topic, queue_id, offset)

    def _is_from_elsewhere(
        self, group: str, topic: str, queue_id: int, offset: int, peer: Peer
    ) -> bool:
        """Return whether an offset is past its queue's end or from before the queue was renewed.

        Its consumer has not noticed that the queue was deleted, rebuilt or truncated.
        """
        if self._bounds is None:
            return False
        end, marks = self._bounds.end(topic, queue_id), self._old_places
        is_old, now_ms = offset > end, self.system.clock.monotonic_ms()
        if not is_old and not self._first_pulls.is_over(now_ms):
            passed = self._first_pulls.end_passed(topic, group, queue_id, offset)
            is_old = passed is not None and self._offset(group, topic, queue_id) >= 0
        if not is_old and self._guard is not None and marks.marks:
            member = self._guard.member(group, peer)
            place = topic, group, queue_id, offset
            is_old = marks.is_old_commit(*place, member=member, now_ms=now_ms)
        if is_old:
            event = "offset commit ignored: not of this queue"
            about = {**_about(topic, queue_id, offset, peer), "queue_end": end}
            self._stats.ignore(self.system.rarely, event, group, **about)
        return is_old

    def _offset(self, group: str, topic: str, queue_id: int) -> int:
        return self._offsets.get(offset_key(topic, group), {}).get(queue_id, -1)

    def _store(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        if self._set(group, topic, queue_id, offset) and self._journal.is_used:
            self._journal.move(offset_key(topic, group), queue_id, offset)

    def _set(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set an offset; return whether it has changed."""
        key = offset_key(topic, group)
        queues = self._offsets.get(key)
        if queues is None or queue_id not in queues:  # most commits are of a known queue
            fault = queue_id_fault(queue_id)
            if queues is None:  # names loaded from the file need no check
                fault = fault or topic_name_fault(topic) or group_name_fault(group)
            event = "offset not taken"
            if not fault and (refusal := self._refusal(group, topic, queue_id)):
                event, fault = refusal.kind, refusal.remark
            if fault:
                place = {"topic": topic[:TOPIC_CHARS_MAX], "group": group[:GROUP_CHARS_MAX]}
                self.log_dropped(event, **place, queue_id=queue_id, reason=fault)
                return False
            if queues is None:
                queues = self._offsets[key] = {}
            if self._ceiling is not None:
                self._ceiling.note_kept(1)
        before = queues.get(queue_id)
        if (before or 0) != offset:
            self._note_moved(key, queue_id)
        queues[queue_id] = offset
        self._note_changed(key)
        return before != offset

    def _refusal(self, group: str, topic: str, queue_id: int) -> LimitReached | None:
        """Return why this new offset exceeds a limit, or None."""
        queues = self._offsets.get(offset_key(topic, group), {})
        if self._ceiling is None or queue_id in queues:
            return None
        return self._ceiling.count(group, topic, queue_id, len(self._offsets))

    def _note_moved(self, key: str, queue_id: int) -> None:
        self._moves.value.by_key.setdefault(key, {})[queue_id] = self.system.clock.now_ms()

    def _note_changed(self, key: str) -> None:
        self._changed = True
        self._unpublished[key] = None
        if len(self._unpublished) >= UNPUBLISHED_MAX:
            self._publish()

    def _publish(self) -> dict[str, dict[int, int]]:
        """Publish a copy that shares unchanged entries with the last one."""
        if not self._unpublished:
            return self._copy
        own, copied = self._offsets, self._copy.copy()
        for key in self._unpublished:
            if key in own:
                copied[key] = own[key].copy()
            else:
                copied.pop(key, None)
        self._unpublished.clear()
        self._published.value = self._copy = copied
        return copied

    def save_changes(self, *thens: Then) -> None:
        """Save and publish a snapshot if offsets have changed."""
        if self._guard is not None:
            self._guard.expire(self.system.clock.monotonic_ms())
        if not self._changed:
            return
        self._changed = False
        if self._ceiling is not None:
            self._ceiling.count_again(self._offsets)
        generation = self._journal.next_generation(self.system.clock.now_ms())
        table = ConsumerOffsetTable(self._publish(), generation)
        if generation is not None:
            thens = (partial(self._saved, generation), *thens)
        self.save(lambda: format_offsets(table), *thens)

    def _saved(self, generation: int, refusal: str) -> None:
        self._journal.saved(generation, refusal)
        unsent, self._unsent = self._unsent, []
        send_answers(unsent)

    def can_stop(self) -> bool:
        return not self._changes and super().can_stop()

    def on_failure(self, *reason: object) -> None:
        """Send all answers; what they confirm is in the journal."""
        super().on_failure(*reason)
        self._changes.refuse(self.remark())
        send_answers(self._unsent)
        self._journal.close()

    def on_stop(self) -> None:
        self._journal.close()


def _about(topic: str, queue_id: int, offset: int, peer: Peer) -> dict[str, Any]:
    return {"topic": topic, "queue_id": queue_id, "offset": offset, "peer": peer.remote}
