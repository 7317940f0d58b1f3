"""Progress of consumer groups: their offsets, consumer lag and time lag.

Owns: nothing; reads published tables and the store below the watermark.
Receives: Request (connections); OffsetsTold (ConsumerOffsets); QueueWork (ColdRead).
Sends: TellOffsets (ConsumerOffsets), because the published offsets are seconds old; ReadCold
(ColdRead); LongAnswer (LongAnswers).

Source: AdminBrokerProcessor (getTopicStatsInfo, getConsumeStats, queryConsumeTimeSpan,
queryTopicConsumeByWho, queryCorrectionOffset, fetchAllConsumeStatsInBroker).
"""

from collections.abc import Callable, Iterator, Mapping, Sized
from datetime import datetime
from functools import partial
from typing import TypeAlias

from actors.config import BrokerConfig
from actors.consumers.queue_work import Job, QueueWork, QueueWorker
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import LongAnswer, Request
from actors.network.request import serves
from actors.receipts.figures import ReceiptFigures
from actors.statistics.counts import PullStats
from actors.tables.messages import OffsetsTold, TellOffsets
from actors.tables.tables import Tables
from protocol.bodies import MessageQueue
from protocol.bodies_admin import (
    ConsumeStatsBody,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupList,
    OffsetWrapper,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from protocol.bodies_own import OffsetProgress, ProgressStats
from protocol.bodies_tables import TopicConfig
from protocol.codes import VERSION_5, RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.admin import (
    GetBrokerConsumeStatsHeader,
    GetConsumeStatsHeader,
    QueryConsumeTimeSpanHeader,
    QueryCorrectionOffsetHeader,
    TopicHeader,
)
from protocol.json_body import Body
from storage.access.acl_file import SUB
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.reading.page_probe import PageProbe
from storage.reading.queue_times import QueueTimes
from storage.tables.offsets import offset_key

Offsets: TypeAlias = Mapping[tuple[str, str], Mapping[int, int]]
LONG_MAX = (1 << 63) - 1


class ConsumeStats(QueueWorker):
    """Answers to requests for consumer progress. Runs on the loop."""

    def __init__(
        self,
        store: MessageStore,
        probe: PageProbe,
        config: BrokerConfig,
        tables: Tables,
        pulls: PullStats,
        *,
        receipts: SnapshotRef[ReceiptFigures],
        broker_address: str,
        addresses: Mapping[str, ActorAddress],
    ) -> None:
        super().__init__(store, probe, addresses["cold_read"])
        self._store = store
        self._config = config
        self._tables = tables
        self._pulls, self._receipts = pulls, receipts
        self._broker_address = broker_address
        self._to = addresses
        self._works: Mapping[int, Callable[[Request, Offsets], QueueWork]] = {
            RequestCode.GET_CONSUME_STATS: self._consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self._broker_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self._time_span,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
            RequestCode.QUERY_CORRECTION_OFFSET: self._correction,
        }

    # --- topics

    @serves(RequestCode.GET_TOPIC_STATS_INFO)
    def on_topic_stats(self, request: Request) -> None:
        """Answer with min and max offset of each queue and the store time of its newest message."""
        config = self._topic(TopicHeader.decode(request.command.fields).topic)
        table = TopicStatsTable()

        def look(queue_id: int, times: QueueTimes) -> None:
            queue = self._queue(config.topic_name, queue_id)
            low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
            stored = times.stored_at(queue, high - 1) if high > 0 else 0
            table.offset_table[self._name(config, queue_id)] = TopicOffset(low, high, stored)

        jobs = (partial(look, queue_id) for queue_id in range(config.write_queue_nums))
        finish = partial(self._answer, request, table, table.offset_table)
        self.work_on(QueueWork(request, jobs, finish))

    # --- groups: fetch their offsets first

    @serves(RequestCode.GET_CONSUME_STATS)
    def on_consume_stats(self, request: Request) -> None:
        """Answer with the lag of one group, in one topic or in all topics with its offsets."""
        header = GetConsumeStatsHeader.decode(request.command.fields)
        topic = header.topic if (header.topic or "").strip() else None
        if topic is not None and request.grant is not None and not request.grant.is_admin:
            code, group = request.command.code, header.consumer_group
            request.grant.require_topic(code, topic, SUB, group)
        self._ask(request, group=header.consumer_group, topic=topic)

    @serves(RequestCode.GET_BROKER_CONSUME_STATS)
    def on_broker_stats(self, request: Request) -> None:
        GetBrokerConsumeStatsHeader.decode(request.command.fields)
        self._ask(request)

    @serves(RequestCode.QUERY_CONSUME_TIME_SPAN)
    def on_time_span(self, request: Request) -> None:
        """Answer with the age of the messages that a group has not consumed."""
        header = QueryConsumeTimeSpanHeader.decode(request.command.fields)
        self._topic(header.topic)
        self._ask(request, group=header.group, topic=header.topic)

    @serves(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def on_groups_of_topic(self, request: Request) -> None:
        """Answer with the groups that subscribe to a topic now or have offsets of it."""
        self._ask(request, topic=TopicHeader.decode(request.command.fields).topic)

    @serves(RequestCode.QUERY_CORRECTION_OFFSET)
    def on_correction(self, request: Request) -> None:
        """Answer with the lowest offsets of other groups, compared with one group's."""
        header = QueryCorrectionOffsetHeader.decode(request.command.fields)
        self._ask(request, topic=header.topic)

    def _ask(self, request: Request, group: str | None = None, topic: str | None = None) -> None:
        self._to["consumer_offsets"].tell(TellOffsets(request, self.address, group, topic))

    @handles(OffsetsTold, reads_only=True)
    def on_offsets(self, message: OffsetsTold) -> None:
        """Start the work of the request, now that the offsets are known."""
        request = message.request
        try:
            work = self._works[request.command.code](request, message.offsets)
        except RemoteError as error:
            request.answer(error.code, remark=error.remark)
        else:
            self.work_on(work)

    def _consume_stats(self, request: Request, offsets: Offsets) -> QueueWork:
        header = GetConsumeStatsHeader.decode(request.command.fields)
        group, grant = header.consumer_group, request.grant
        body = self._new_body(group, header.with_progress)
        sees_all = grant is None or grant.is_admin

        def jobs() -> Iterator[Job | None]:
            for (topic, group), queues in offsets.items():
                is_seen = sees_all or (grant is not None and grant.may_use_topic(topic, SUB))
                config = self._counted(group, topic, body) if is_seen else None
                if config is None:
                    yield None
                    continue
                for queue_id in self._lagging(config, config.read_queue_nums, queues):
                    yield (
                        None
                        if queue_id is None
                        else partial(
                            self._add, body, config, group, queue_id, queues.get(queue_id, 0)
                        )
                    )

        def finish() -> RemotingCommand | None:
            if request.command.version >= VERSION_5:
                header = GetConsumeStatsHeader.decode(request.command.fields)
                self._add_pull_offsets(header.consumer_group, body)
            return self._answer(request, body, body.offset_table)

        return QueueWork(request, jobs(), finish)

    def _add_pull_offsets(self, group: str, body: ConsumeStatsBody) -> None:
        """Add the pull offsets, which tools of 4.9.7 do not know."""
        for queue, found in body.offset_table.items():
            newest = self._pull_offset(group, queue.topic, queue.queue_id, found)
            found.pull_offset = found.consumer_offset if newest is None else newest

    def _pull_offset(
        self, group: str, topic: str, queue_id: int, found: OffsetWrapper
    ) -> int | None:
        """Return the offset behind the newest message handed out; None without one."""
        figures = self._receipts.value.in_flight.get((group, topic))
        counts = self._pulls.by_group.get((topic, group))
        held = 0 if figures is None else figures.queues.get(queue_id, 0)
        pulled = None if counts is None else counts.pulled.get(queue_id)
        if not held and pulled is None:
            return None
        return min(max(found.consumer_offset + held, pulled or 0), found.broker_offset)

    def _broker_stats(self, request: Request, offsets: Offsets) -> QueueWork:
        header = GetBrokerConsumeStatsHeader.decode(request.command.fields)
        by_group: dict[str, list[ConsumeStatsBody]] = {
            name: [] for name in self._tables.groups.value
        }

        behind = 0

        def add(
            body: ConsumeStatsBody,
            config: TopicConfig,
            group: str,
            queue_id: int,
            offset: int,
            times: QueueTimes,
        ) -> None:
            nonlocal behind
            added = self._add(body, config, group, queue_id, offset, times)
            behind += added.lag

        def jobs() -> Iterator[Job | None]:
            for (topic, group), queues in offsets.items():
                body = self._new_body(group, header.with_progress)
                config = self._counted(group, topic, body) if group in by_group else None
                if config is None or (header.is_order and not config.order):
                    yield None
                    continue
                by_group[group].append(body)
                for queue_id in self._lagging(config, config.write_queue_nums, queues):
                    yield (
                        None
                        if queue_id is None
                        else partial(add, body, config, group, queue_id, queues.get(queue_id, 0))
                    )

        def finish() -> None:
            every = [{name: found} for name, found in by_group.items()]
            body = ConsumeStatsList(every, self._broker_address, behind)
            self._to["long_answers"].tell(LongAnswer(request, body, self.answered(request)))

        return QueueWork(request, jobs(), finish)

    def _new_body(self, group: str, with_progress: bool | None) -> ConsumeStatsBody:
        if not with_progress:
            return ConsumeStatsBody()
        view = self._tables.consumers.value.get(group)
        return ProgressStats(
            observed_since=self._tables.offset_moves.value.since_ms,
            answered_timestamp=self.system.clock.now_ms(),
            members=0 if view is None else len(view.members),
            stuck_after=self._config.stuck_after_seconds * 1000,
        )

    def _counted(self, group: str, topic: str, body: ConsumeStatsBody) -> TopicConfig | None:
        """Return the topic and add the group's rate to `body`, or None if it does not count.

        A topic does not count if it is missing, or if the online group no longer subscribes
        to it.
        """
        config = self._tables.topics.value.get(topic)
        view = self._tables.consumers.value.get(group)
        if config is None or (view and view.subscriptions and topic not in view.subscriptions):
            return None
        body.consume_tps += self._tables.rates.value.got(offset_key(topic, group))[0]
        return config

    def _lagging(
        self, config: TopicConfig, count: int, offsets: Mapping[int, int]
    ) -> Iterator[int | None]:
        """Yield `count` queue ids, then those of unread queues that still hold messages.

        Yield None for other unread queues. 4.9.7 ignores queues that the topic no longer has.
        """
        topic = config.topic_name
        yield from range(count)
        for queue_id in range(count, self._store.consume_queues.id_count(topic)):
            queue = self._queue(topic, queue_id)
            is_lagging = queue is not None and queue.max_offset > max(
                offsets.get(queue_id, 0), queue.min_offset
            )
            yield queue_id if is_lagging else None

    def _add(
        self,
        body: ConsumeStatsBody,
        config: TopicConfig,
        group: str,
        queue_id: int,
        offset: int,
        times: QueueTimes,
    ) -> OffsetWrapper:
        queue, end = self._queue(config.topic_name, queue_id), 0
        if queue is not None:
            end = queue.max_offset
            if queue_id >= config.read_queue_nums:  # deleted messages do not count as lag
                offset = max(offset, queue.min_offset)
        offset = min(max(offset, 0), end)  # else tools show a negative lag
        stored = times.stored_at(queue, offset - 1) if offset > 0 else 0
        found = OffsetWrapper(end, offset, max(stored, 0))
        if isinstance(body, ProgressStats):
            found = self._progress(found, config.topic_name, group, queue_id, queue, times)
            figures = self._receipts.value.in_flight.get((group, config.topic_name))
            if figures is not None and figures.count:
                body.held_since = min(body.held_since or figures.oldest_ms, figures.oldest_ms)
                body.held_tries = max(body.held_tries, figures.tries_max)
        body.offset_table[self._name(config, queue_id)] = found
        return found

    def _progress(
        self,
        found: OffsetWrapper,
        topic: str,
        group: str,
        queue_id: int,
        queue: ConsumeQueue | None,
        times: QueueTimes,
    ) -> OffsetProgress:
        """Return the offsets with the times that tell a slow group from a stuck one."""
        end, offset = found.broker_offset, found.consumer_offset
        waiting_ms = 0
        if queue is not None and offset < end:
            waiting_ms = max(0, times.came_at(queue, max(offset, queue.min_offset)))
        moved_ms = self._tables.offset_moves.value.at_ms(offset_key(topic, group), queue_id)
        pull = self._pull_offset(group, topic, queue_id, found)
        return OffsetProgress(end, offset, found.last_timestamp, pull, moved_ms, waiting_ms)

    def _time_span(self, request: Request, offsets: Offsets) -> QueueWork:
        header = QueryConsumeTimeSpanHeader.decode(request.command.fields)
        config = self._topic(header.topic)
        queues = offsets.get((header.topic, header.group), {})
        body = ConsumeTimeSpans()

        def look(queue_id: int, times: QueueTimes) -> None:
            span = self._span(config, queue_id, queues.get(queue_id, -1), times)
            body.consume_time_span_set.append(span)

        jobs = (partial(look, queue_id) for queue_id in range(config.write_queue_nums))
        finish = partial(self._answer, request, body, body.consume_time_span_set)
        return QueueWork(request, jobs, finish)

    def _span(
        self, config: TopicConfig, queue_id: int, offset: int, times: QueueTimes
    ) -> QueueTimeSpan:
        queue = self._queue(config.topic_name, queue_id)
        max_offset = 0 if queue is None else queue.max_offset
        first = times.earliest(queue)
        newest = times.stored_at(queue, max_offset - 1)
        consumed = times.stored_at(queue, offset - 1) if offset > 0 else first
        delay_ms = 0
        if queue is not None and offset < max_offset:  # 4.9.7 shows 50 years for an empty queue
            came_ms = times.came_at(queue, max(offset, queue.min_offset))
            delay_ms = max(0, self.system.clock.now_ms() - came_ms) if came_ms >= 0 else 0
        return QueueTimeSpan(
            self._name(config, queue_id),
            first,
            newest,
            consumed,
            delay_ms,
            _time_text(first),
            _time_text(newest),
            _time_text(consumed),
        )

    def _groups_of_topic(self, request: Request, offsets: Offsets) -> QueueWork:
        topic = TopicHeader.decode(request.command.fields).topic
        online = [
            group
            for group, view in self._tables.consumers.value.items()
            if topic in view.subscriptions
        ]
        groups = [*dict.fromkeys([*online, *(group for _, group in offsets)])]
        finish = partial(self._answer, request, GroupList(groups), groups)
        return QueueWork(request, iter(()), finish)

    def _correction(self, request: Request, offsets: Offsets) -> QueueWork:
        """Build the correction offsets.

        4.9.7 deletes the offsets of the groups to leave out; here they stay.
        """
        header = QueryCorrectionOffsetHeader.decode(request.command.fields)
        left_out = set((header.filter_groups or "").split(","))
        lowest: dict[int, int] = {}

        def compare() -> Iterator[None]:
            for (topic, group), queues in offsets.items():
                yield None
                if group in left_out:
                    continue
                for queue_id, offset in queues.items():
                    queue = self._queue(topic, queue_id)
                    if offset >= (0 if queue is None else queue.min_offset):
                        lowest[queue_id] = min(offset, lowest.get(queue_id, LONG_MAX))
                    yield None
            for queue_id, offset in offsets.get((header.topic, header.compare_group), {}).items():
                if lowest.get(queue_id, -1) > offset:
                    lowest[queue_id] = LONG_MAX
                yield None

        finish = partial(self._answer, request, CorrectionOffsets(lowest), lowest)
        return QueueWork(request, compare(), finish)

    # --- helpers

    def _topic(self, topic: str) -> TopicConfig:
        config = self._tables.topics.value.get(topic)
        if config is None:
            raise RemoteError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._store.consume_queues.get(topic, queue_id)

    def _name(self, config: TopicConfig, queue_id: int) -> MessageQueue:
        return MessageQueue(config.topic_name, self._config.broker_name, queue_id)

    def _answer(self, request: Request, body: Body, entries: Sized) -> RemotingCommand | None:
        """Return the answer with `body` of these entries; None: LongAnswers sends it."""
        if len(entries) <= ENCODED_HERE_MAX:
            return request.command.answer(body=body.encode())
        self._to["long_answers"].tell(LongAnswer(request, body, self.answered(request)))
        return None


def _time_text(time_ms: int) -> str:
    """Return local time as 4.9.7 writes it: `2026-11-20#15:36:42:118`."""
    moment = datetime.fromtimestamp(time_ms // 1000)
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03d}"
