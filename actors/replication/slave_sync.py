"""Copy of the master's topics, groups and offsets in a slave's tables and files.

Owns: one connection to the master's port for clients.
Receives: MasterClientAddress from Registration; UnknownTopics from PutReplica; QueuesBegunAnew from
CleanFiles; Synced from the flusher; its own ticks.
Sends: Sync to the flusher; ReplaceTopics, MergeOffsets, TakeDelayOffsets, TakeGroups,
TakeRequestModes and TopicsGone to the tables; RemoveTopic to CleanFiles.

It requests the tables 3 s after the start, then every 10 s, and at once for an unknown topic. It
does so only while the logs agree (HaSlave): a master that lost its store has lost its tables.
Offsets wait until this log is as long as the master's was, and synced. Otherwise they would mark
messages as consumed or delivered that this slave lacks, perhaps after a power cut. 4.9.7 takes
everything, every 10 s. Only entries that a start can load are taken. If the master does not answer,
the tables stay; one line is logged at the beginning and one at the end.

Source: broker/slave/SlaveSynchronize.java.
"""

from collections.abc import Callable, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeVar

from actors.delays.delay_offsets import SAVE_BYTES
from actors.delays.messages import TakeDelayOffsets
from actors.dispatching.messages import QueuesBegunAnew
from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.naming.messages import MasterClientAddress
from actors.naming.namesrv_link import BlockingConnection
from actors.network.tls_contexts import ToCallWith
from actors.replication.messages import UnknownTopics
from actors.sending.messages import Sync, Synced
from actors.tables.messages import (
    MergeOffsets,
    RemoveTopic,
    ReplaceTopics,
    TakeGroups,
    TakeRequestModes,
    TopicsGone,
)
from actors.tables.persisted import LEFT_OUT_LINES_MAX
from protocol.bodies_admin import TopicStatsTable
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.admin import TopicHeader
from protocol.java_numbers import parse_long
from protocol.signature import Credentials
from remoting.sync_connection import RemotingFailed, SyncConnection
from storage.log.commit_log import CommitLog
from storage.tables.delay_offsets import ahead_sets, format_delay_offsets, parse_delay_offsets
from storage.tables.groups import parse_groups
from storage.tables.offsets import parse_offsets
from storage.tables.request_modes import parse_request_modes
from storage.tables.skipped_entry import LeftOuts
from storage.tables.topics import parse_topics

log = get_logger(__name__)

T = TypeVar("T")

FIRST_AFTER_MS = 3000
INTERVAL_MS = 10_000
AGAIN_MS = 1000
"""Minimum interval between requests because of unknown topics."""
LOOK_MS = 500
"""Interval between checks whether the log is long enough for the offsets."""
TIMEOUT_MS = 3000
ENTRIES_MAX = 500_000
"""Topics, or groups, of a master; a name server takes as many topics of a broker."""


@dataclass(frozen=True, slots=True)
class _Tick:
    """Request the tables at the regular time."""


@dataclass(frozen=True, slots=True)
class _Now:
    """Request the tables early."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Check the length of the log."""


@dataclass(frozen=True, slots=True)
class _Early:
    """Offsets that need a log of `log_end` bytes."""

    log_end: int
    consumers: MergeOffsets
    delays: TakeDelayOffsets


class SlaveSync(Actor):
    """Actor on a thread: its socket blocks, with a timeout."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        own_address: str,
        *,
        commit_log: CommitLog,
        agrees: SnapshotRef[bool],
        addresses: Mapping[str, ActorAddress],
        credentials: Credentials | None = None,
        tls: ToCallWith = lambda: None,
        connect: Callable[[str], BlockingConnection] | None = None,
    ) -> None:
        super().__init__()
        self._own_address = own_address
        self._log, self._agrees = commit_log, agrees
        self._early: _Early | None = None
        self._to = addresses
        self._connect = connect or partial(
            SyncConnection, timeout_ms=TIMEOUT_MS, credentials=credentials, context=tls
        )
        self._signs = credentials is not None
        self._client: BlockingConnection | None = None
        self._failure: str | None = ""
        self._asked_ms = 0.0
        self._is_wanted = False
        self._served_by = ""
        self._continues = True
        """Whether the next tables come from the same master as the last."""
        self._master_end = -1
        """End of the master's log in the last round; -1 before the first."""
        self._left_out: dict[RequestCode, list[tuple[str, str]]] = {}
        """Entries not taken in the last round, with reasons, by table."""
        self._has_modes = True
        """Whether the master may have request modes."""
        self._first_timers_from = 0
        """Offset of this log below which a master without timers has no copy of one."""
        self._begun: dict[str, int] = {}
        """Topics with restarted queues, and the physical offset where the newest begins."""

    def on_start(self) -> None:
        self.after(FIRST_AFTER_MS, _Tick())

    @handles(MasterClientAddress)
    def on_master_is(self, message: MasterClientAddress) -> None:
        """Connect to the master; this broker's own address counts as no master."""
        address = None if message.address == self._own_address else message.address
        if self._client is not None and self._client.address != address:
            self._close()
        if address is not None and self._client is None:
            self._client = self._connect(address)
            self._has_modes = True
            self._continues = self._continues and self._served_by in ("", address)
            self._served_by = address

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        self.after(INTERVAL_MS, _Tick())
        self._ask_all()

    @handles(UnknownTopics)
    def on_unknown_topics(self, message: UnknownTopics) -> None:
        """Request the tables soon: these messages cannot be pulled without their topics."""
        if not self._is_wanted:
            self._is_wanted = True
            due_ms = self._asked_ms + AGAIN_MS - self.system.clock.monotonic_ms()
            log.info(
                "unknown topics received",
                topics=message.topics[:10],
                count=len(message.topics),
            )
            self.after(max(0.0, due_ms), _Now())

    @handles(_Now)
    def on_now(self, _: _Now) -> None:
        self._ask_all()

    @handles(QueuesBegunAnew)
    def on_queues_begun_anew(self, message: QueuesBegunAnew) -> None:
        """Have offsets of these topics removed; ask the master for their empty queues."""
        self._begun.update(message.topics)
        self._to["consumer_offsets"].tell(TopicsGone(frozenset(message.topics), has_restarted=True))

    def _ask_all(self) -> None:
        """Request all tables, in the order of 4.9.7."""
        self._is_wanted = False
        self._asked_ms = self.system.clock.monotonic_ms()
        if self._client is None:
            return
        if not self._agrees.value:
            self._early, self._master_end = None, -1
            self._note("the logs of master and slave do not agree")
            self._show_itself(self._client)
            return
        try:
            self._take_all(self._client)
        except RemotingFailed as error:
            self._note(error.reason)
        except (RemoteError, ValueError, KeyError) as error:
            self._note(f"invalid answer: {error}")
        else:
            self._note(None)

    def _show_itself(self, client: BlockingConnection) -> None:
        """Sign a request, as a master with access control must know a slave's host."""
        if self._signs:
            with suppress(RemotingFailed, RemoteError):
                self._ask(client, RequestCode.GET_BROKER_RUNTIME_INFO)

    def _take_all(self, client: BlockingConnection) -> None:
        own_end = self._log.end_offset
        has_all = 0 <= self._master_end <= own_end
        topics = self._table(client, RequestCode.GET_ALL_TOPIC_CONFIG, parse_topics)
        check_count(topics.topic_configs)
        self._to["topics"].tell(ReplaceTopics(topics, own_end, has_all, self._continues))
        offsets = self._table(client, RequestCode.GET_ALL_CONSUMER_OFFSET, parse_offsets)
        left_out: LeftOuts = []
        text = self._ask(client, RequestCode.GET_ALL_DELAY_OFFSET).decode("utf-8")
        table = parse_delay_offsets(text, left_out)
        self._note_left_out(RequestCode.GET_ALL_DELAY_OFFSET, left_out)
        if has_none := table.timers_from is None:  # copies of the first will be behind this log
            if not 0 <= own_end - self._first_timers_from < SAVE_BYTES:
                self._first_timers_from = own_end
            table.timers_from = self._first_timers_from
        text = format_delay_offsets(table) if left_out or has_none else text
        delays = TakeDelayOffsets(table, text, ahead_sets(table))
        groups = self._table(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, parse_groups)
        check_count(groups.subscription_group_table)
        self._to["groups"].tell(TakeGroups(groups, self._continues))
        self._continues = True
        info = KVTable.decode(self._ask(client, RequestCode.GET_BROKER_RUNTIME_INFO))
        self._master_end = parse_long(info.table["commitLogMaxOffset"])
        if self._early is None:  # otherwise earlier ones still wait
            self._early = _Early(self._master_end, MergeOffsets(offsets), delays)
            self._take_offsets()
        dispatched = self._master_end - parse_long(info.table["dispatchBehindBytes"])
        for topic, place in self._begun.copy().items():
            if place < dispatched:  # otherwise not dispatched at the master yet
                del self._begun[topic]
                self._remove_empty(client, topic, place)
        if self._has_modes:
            self._take_modes(client)

    def _take_modes(self, client: BlockingConnection) -> None:
        """Take the request modes; a 4.9.7 master does not have any and is asked once."""
        code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
        answer = client.call(RemotingCommand(code), repeats=True)
        self._has_modes = answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        if answer.code == ResponseCode.SUCCESS and answer.body:
            left_out: LeftOuts = []
            table = parse_request_modes(bytes(answer.body), left_out)
            self._note_left_out(code, left_out)
            self._to["request_modes"].tell(TakeRequestModes(table))

    def _table(
        self, client: BlockingConnection, code: RequestCode, parse: Callable[[bytes, LeftOuts], T]
    ) -> T:
        """Return a table of the master, without entries that a start could not load."""
        left_out: LeftOuts = []
        table = parse(self._ask(client, code), left_out)
        self._note_left_out(code, left_out)
        return table

    def _note_left_out(self, code: RequestCode, left_out: LeftOuts) -> None:
        """Log each entry once, as long as the master has it."""
        found = [(each.entry, each.reason) for each in left_out]
        for entry, reason in found[:LEFT_OUT_LINES_MAX]:
            if (entry, reason) not in self._left_out.get(code, ()):
                log.warning("entry left out", table=code.name, entry=entry, reason=reason)
        self._left_out[code] = found

    def _remove_empty(self, client: BlockingConnection, topic: str, place: int) -> None:
        """Remove queues that are empty at the master: their content was deleted there."""
        header = TopicHeader(topic).encode()
        answer = client.call(
            RemotingCommand(RequestCode.GET_TOPIC_STATS_INFO, header), repeats=True
        )
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return  # the topic is deleted again, and its queues with it
        ends = TopicStatsTable.decode(answer.body).offset_table.items()
        empty = frozenset(queue.queue_id for queue, end in ends if not end.max_offset)
        self._to["clean_files"].tell(RemoveTopic(topic, None, place, empty))

    @handles(_Look)
    def on_look(self, _: _Look) -> None:
        """Take the offsets if the log is long enough."""
        self._take_offsets()

    @handles(Synced)
    def on_synced(self, message: Synced) -> None:
        """Take the offsets if their log is synced; after a failed sync they never are."""
        if message.failure is not None:
            self._early = None
        elif self._early is not None and message.flushed_offset < self._early.log_end:
            self.after(LOOK_MS, _Look())
        else:
            self._take_offsets()

    def _take_offsets(self) -> None:
        """Take the offsets once the log that they need is here and synced."""
        early = self._early
        if early is None:
            return
        if not self._agrees.value or self._log.end_offset < early.log_end:
            self.after(LOOK_MS, _Look())
            return
        if self._log.flushed_offset < early.log_end:
            self._to["flusher"].tell(Sync(early.log_end, self.address))
            return
        self._early = None
        self._to["consumer_offsets"].tell(early.consumers)
        self._to["delay_offsets"].tell(early.delays)

    @staticmethod
    def _ask(client: BlockingConnection, code: RequestCode) -> bytes:
        answer = client.call(RemotingCommand(code), repeats=True)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            reason = f"{code.name} got code {answer.code}: {answer.remark}"
            raise RemotingFailed(client.address, reason)
        return bytes(answer.body)

    def _note(self, failure: str | None) -> None:
        """Log a change of state, not each try."""
        assert self._client is not None
        if failure is None and self._failure is not None:
            log.info("table sync from master started", master=self._client.address)
        elif failure is not None and not self._failure:
            log.warning(
                "table sync from master failed",
                master=self._client.address,
                reason=failure,
            )
        self._failure = failure

    def _close(self) -> None:
        self._early, self._master_end = None, -1
        if self._client is not None:
            self._client.close()
            self._client = None

    def on_stop(self) -> None:
        self._close()

    def on_failure(self, *_: object) -> None:
        """Disconnect; the restarted actor waits for MasterClientAddress."""
        self._close()


def check_count(table: Sized) -> None:
    """Raise ValueError for a table with too many entries."""
    if len(table) > ENTRIES_MAX:
        raise ValueError(f"a table of {len(table)} entries; a slave takes at most {ENTRIES_MAX}")
