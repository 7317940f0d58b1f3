"""Takes topics, groups and offsets over from the master, into a slave's own tables and files.

Owns: one connection to the master's port for clients.
Told by: Registration (`MasterClientAddress`), PutReplica (`UnknownTopics`), CleanFiles
(`QueuesBegunAnew`), its own tick.
Tells: the tables (`ReplaceTopics`, `MergeOffsets`, `TakeDelayOffsets`, `TakeGroups`), CleanFiles
(`RemoveTopic`).

First 3 s after the start, then every 10 s, and at once when the log has a message of a topic that
is not known here; while the logs agree (HaSlave): a master that has lost its store has lost its
tables, too. Offsets wait until the log here is as long as the master's was
when it told them: they would count as delivered or consumed what this slave does not have yet.
4.9.7 takes everything, every 10 s. Of a table only those entries are taken that a start could load.
What the master does not answer is left as it is, with one line when that begins and one when it is
over.

Source: broker/slave/SlaveSynchronize.java.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeVar

from structlog import get_logger

from actors.delays.delay_offsets import TakeDelayOffsets
from actors.dispatching.trim import QueuesBegunAnew
from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.snapshot_ref import SnapshotRef
from actors.naming.messages import MasterClientAddress
from actors.naming.namesrv_link import BlockingConnection
from actors.network.tls_contexts import ToCallWith
from actors.replication.messages import UnknownTopics
from actors.tables.messages import MergeOffsets, RemoveTopic, ReplaceTopics, TakeGroups, TopicsGone
from actors.tables.persisted import LEFT_OUT_LINES_MAX
from protocol.bodies import KVTable
from protocol.bodies_admin import TopicStatsTable
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.admin import TopicHeader
from protocol.java_numbers import parse_long
from protocol.signature import Credentials
from remoting.sync_connection import RemotingFailed, SyncConnection
from storage.log.commit_log import CommitLog
from storage.tables.delay_offsets import format_delay_offsets, parse_delay_offsets
from storage.tables.groups import parse_groups
from storage.tables.offsets import parse_offsets
from storage.tables.skipped_entry import LeftOuts
from storage.tables.topics import parse_topics

log = get_logger(__name__)

T = TypeVar("T")

FIRST_AFTER_MS = 3000
INTERVAL_MS = 10_000
AGAIN_MS = 1000
"""Between two times that unknown topics make it ask."""
LOOK_MS = 500
"""Between looks whether the log is long enough for the offsets."""
TIMEOUT_MS = 3000


@dataclass(frozen=True, slots=True)
class _Tick:
    """Time to ask."""


@dataclass(frozen=True, slots=True)
class _Now:
    """Ask, though it is not time."""


@dataclass(frozen=True, slots=True)
class _Look:
    """The log may have come far enough."""


@dataclass(frozen=True, slots=True)
class _Early:
    """Offsets that mean a log of this length."""

    log_end: int
    consumers: MergeOffsets
    delays: TakeDelayOffsets


class SlaveSync(Actor):
    """Runs on a thread: its socket blocks, with a timeout."""

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
        """Whether the next tables are those of the same master as the last."""
        self._master_end = -1
        """How long the master's log was at the end of the last round; -1: there was none."""
        self._left_out: dict[RequestCode, list[tuple[str, str]]] = {}
        """Entries of the master's tables that were not taken in the last round, and why."""
        self._begun: dict[str, int] = {}
        """Topics with queues that have begun anew, and where in the log the newest of them does."""

    def on_start(self) -> None:
        self.after(FIRST_AFTER_MS, _Tick())

    @handles(MasterClientAddress)
    def on_master_is(self, message: MasterClientAddress) -> None:
        """There is a master, or there is none; this broker itself is none."""
        address = None if message.address == self._own_address else message.address
        if self._client is not None and self._client.address != address:
            self._close()
        if address is not None and self._client is None:
            self._client = self._connect(address)
            self._continues = self._continues and self._served_by in ("", address)
            self._served_by = address

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """It is time."""
        self.after(INTERVAL_MS, _Tick())
        self._ask_all()

    @handles(UnknownTopics)
    def on_unknown_topics(self, message: UnknownTopics) -> None:
        """Their messages could not be pulled here; and the master may be gone at any moment."""
        if not self._is_wanted:
            self._is_wanted = True
            due_ms = self._asked_ms + AGAIN_MS - self.system.clock.monotonic_ms()
            log.info("topics not known yet", topics=message.topics[:10], count=len(message.topics))
            self.after(max(0.0, due_ms), _Now())

    @handles(_Now)
    def on_now(self, _: _Now) -> None:
        """Asks for everything."""
        self._ask_all()

    @handles(QueuesBegunAnew)
    def on_queues_begun_anew(self, message: QueuesBegunAnew) -> None:
        """The master will say which queues of these topics have begun anew and are still empty."""
        self._begun.update(message.topics)
        self._to["consumer_offsets"].tell(TopicsGone(frozenset(message.topics)))

    def _ask_all(self) -> None:
        """Asks for everything, in the order of 4.9.7."""
        self._is_wanted = False
        self._asked_ms = self.system.clock.monotonic_ms()
        if self._client is None:
            return
        if not self._agrees.value:
            self._early, self._master_end = None, -1
            self._note("this slave does not follow the log of that master")
            self._show_itself(self._client)
            return
        try:
            self._take_all(self._client)
        except RemotingFailed as error:
            self._note(error.reason)
        except (RemoteError, ValueError, KeyError) as error:
            self._note(f"an answer is not understood: {error}")
        else:
            self._note(None)

    def _show_itself(self, client: BlockingConnection) -> None:
        """To a master with access control: whom it does not know may not have its log."""
        if self._signs:
            with suppress(RemotingFailed, RemoteError):
                self._ask(client, RequestCode.GET_BROKER_RUNTIME_INFO)

    def _take_all(self, client: BlockingConnection) -> None:
        own_end = self._log.end_offset
        has_all = 0 <= self._master_end <= own_end
        topics = self._table(client, RequestCode.GET_ALL_TOPIC_CONFIG, parse_topics)
        self._to["topics"].tell(ReplaceTopics(topics, own_end, has_all, self._continues))
        offsets = self._table(client, RequestCode.GET_ALL_CONSUMER_OFFSET, parse_offsets)
        left_out: LeftOuts = []
        text = self._ask(client, RequestCode.GET_ALL_DELAY_OFFSET).decode("utf-8")
        table = parse_delay_offsets(text, left_out)
        self._note_left_out(RequestCode.GET_ALL_DELAY_OFFSET, left_out)
        delays = TakeDelayOffsets(table, format_delay_offsets(table) if left_out else text)
        groups = self._table(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, parse_groups)
        self._to["groups"].tell(TakeGroups(groups, self._continues))
        self._continues = True
        info = KVTable.decode(self._ask(client, RequestCode.GET_BROKER_RUNTIME_INFO))
        self._master_end = parse_long(info.table["commitLogMaxOffset"])
        if self._early is None:  # else those before, for which the log is not long enough yet
            self._early = _Early(self._master_end, MergeOffsets(offsets), delays)
            self._take_offsets()
        dispatched = self._master_end - parse_long(info.table["dispatchBehindBytes"])
        for topic, place in self._begun.copy().items():
            if place < dispatched:  # else the master's queues do not tell yet
                del self._begun[topic]
                self._remove_empty(client, topic, place)

    def _table(
        self, client: BlockingConnection, code: RequestCode, parse: Callable[[bytes, LeftOuts], T]
    ) -> T:
        """One of the master's tables, without what this broker's next start could not load."""
        left_out: LeftOuts = []
        table = parse(self._ask(client, code), left_out)
        self._note_left_out(code, left_out)
        return table

    def _note_left_out(self, code: RequestCode, left_out: LeftOuts) -> None:
        """Once for each entry, for as long as the master has it."""
        found = [(each.entry, each.reason) for each in left_out]
        for entry, reason in found[:LEFT_OUT_LINES_MAX]:
            if (entry, reason) not in self._left_out.get(code, ()):
                log.warning("entry left out", table=code.name, entry=entry, reason=reason)
        self._left_out[code] = found

    def _remove_empty(self, client: BlockingConnection, topic: str, place: int) -> None:
        """What a queue has that is empty at the master is of before the topic was deleted."""
        header = TopicHeader(topic).encode()
        answer = client.call(
            RemotingCommand(RequestCode.GET_TOPIC_STATS_INFO, header), repeats=True
        )
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return  # deleted again: then its queues go with it
        ends = TopicStatsTable.decode(answer.body).offset_table.items()
        empty = frozenset(queue.queue_id for queue, end in ends if not end.max_offset)
        self._to["clean_files"].tell(RemoveTopic(topic, None, place, empty))

    @handles(_Look)
    def on_look(self, _: _Look) -> None:
        """Takes the offsets as soon as the log is long enough."""
        self._take_offsets()

    def _take_offsets(self) -> None:
        early = self._early
        if early is None:
            return
        if not self._agrees.value or self._log.end_offset < early.log_end:
            self.after(LOOK_MS, _Look())
            return
        self._early = None
        self._to["consumer_offsets"].tell(early.consumers)
        self._to["delay_offsets"].tell(early.delays)

    @staticmethod
    def _ask(client: BlockingConnection, code: RequestCode) -> bytes:
        answer = client.call(RemotingCommand(code), repeats=True)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            reason = f"{code.name} is answered {answer.code}: {answer.remark}"
            raise RemotingFailed(client.address, reason)
        return bytes(answer.body)

    def _note(self, failure: str | None) -> None:
        """One line per change of state, not per try."""
        assert self._client is not None
        if failure is None and self._failure is not None:
            log.info("takes topics, groups and offsets over", master=self._client.address)
        elif failure is not None and not self._failure:
            log.warning("nothing taken over", master=self._client.address, reason=failure)
        self._failure = failure

    def _close(self) -> None:
        self._early, self._master_end = None, -1
        if self._client is not None:
            self._client.close()
            self._client = None

    def on_stop(self) -> None:
        self._close()

    def on_failure(self, *_: object) -> None:
        """The one after this connects anew, once the registration has told it where."""
        self._close()
