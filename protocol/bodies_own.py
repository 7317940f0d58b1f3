"""The JSON bodies of requests that 4.9.7 does not know: ours alone.

Their codes lie far from all of RocketMQ's, later versions included; RocketMQ's clients
never ask them, and its brokers answer 3 to them.
"""

from dataclasses import dataclass, field
from typing import Any

from protocol.json_body import Body


@dataclass(slots=True)
class GroupChange(Body):
    """A consumer joined, left or changed: GET_GROUP_CHANGES."""

    timestamp: int
    """When, ms."""
    kind: str
    client_id: str
    client_addr: str
    why: str = ""
    members: int = 0
    """How many there were after it."""


@dataclass(slots=True)
class WantingClients(Body):
    """Members of a group that want the same of a topic; empty expression: they do not want it."""

    expression: str
    count: int = 0
    client_ids: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SubscriptionMismatch(Body):
    """A topic of which the members of a group want different things: GET_GROUP_CHANGES."""

    topic: str
    wanted: list[WantingClients] = field(default_factory=list)


@dataclass(slots=True)
class AclRefusal(Body):
    """How often an account was refused something: GET_ACL_REFUSALS, GET_GROUP_CHANGES."""

    account: str
    group: str
    code: int
    count: int
    last_timestamp: int
    remark: str
    address: str
    """Of the last one."""


@dataclass(slots=True)
class AclRefusals(Body):
    """All of them: GET_ACL_REFUSALS."""

    refusals: list[AclRefusal] = field(default_factory=list)


@dataclass(slots=True)
class GroupChanges(Body):
    """What has happened to a group lately, oldest first; how its subscriptions differ now."""

    group: str
    members: int = 0
    changes: list[GroupChange] = field(default_factory=list)
    mismatches: list[SubscriptionMismatch] = field(default_factory=list)
    refusals: list[AclRefusal] = field(default_factory=list)


@dataclass(slots=True)
class ActorLine(Body):
    """One actor of a broker: GET_ACTORS."""

    name: str
    is_up: bool
    inbox: int
    """Messages that wait."""
    handled: int
    restarts: int


@dataclass(slots=True)
class ActorList(Body):
    """The actors of a broker: GET_ACTORS."""

    actors: list[ActorLine] = field(default_factory=list)
    slow_handlers: int = 0
    """Handlers that took longer than 50 ms."""
    longest_ms: int = 0
    """Of the handler on the loop that took longest, since the metrics were read, else the start."""
    longest_actor: str = ""
    longest_message: str = ""


@dataclass(slots=True)
class DamagedPlace(Body):
    """A range of the commit log that holds no whole message: GET_STORE_STATE."""

    start: int
    end: int
    why: str


@dataclass(slots=True)
class StoreState(Body):
    """What the store of a broker holds, and what is wrong with it: GET_STORE_STATE.

    Offsets are those of the commit log.
    """

    log_files: int = 0
    log_file_bytes: int = 0
    log_start: int = 0
    log_end: int = 0
    flushed: int = 0
    """Up to here it is on the disk."""
    dispatched: int = 0
    """Up to here it is in the queues."""
    queues: int = 0
    index_files: int = 0
    disk_bytes: int = 0
    """Of the log's file system; 0: it does not say."""
    disk_free_bytes: int = 0
    damaged_places: int = 0
    damaged_bytes: int = 0
    damage: list[DamagedPlace] = field(default_factory=list)
    """The first of them, if they are many."""
    damaged_tables: list[str] = field(default_factory=list)
    """Files of topics, groups, offsets and the like that the start found damaged."""
    found_at_start: list[str] = field(default_factory=list)
    """What the start found that was not as it should be, and what became of it."""
    verified_percent: int = 0
    """How far the round is that looks for damage; 100 with none under way."""
    verified_ms: int = 0
    """When the last whole round ended; 0: none has since the start."""


@dataclass(slots=True)
class OpenTransaction(Body):
    """A half message that nobody has ended: GET_OPEN_TRANSACTIONS. Times in ms."""

    producer_group: str
    topic: str
    message_id: str
    """The producer's own, UNIQ_KEY."""
    offset_message_id: str
    physical_offset: int
    born_timestamp: int
    store_timestamp: int
    """Of its newest copy: each check makes one."""
    born_host: str
    check_times: int = 0


@dataclass(slots=True)
class OpenTransactions(Body):
    """Some open transactions, oldest first, and how many there are: GET_OPEN_TRANSACTIONS."""

    count: int = 0
    transactions: list[OpenTransaction] = field(default_factory=list)


@dataclass(slots=True)
class LeasedQueue(Body):
    """A queue that somebody reads, from an offset on: LEASE_LOG."""

    topic: str
    queue_id: int
    queue_offset: int


@dataclass(slots=True)
class LeasedQueues(Body):
    """What a lease is to keep: LEASE_LOG. A queue that is not there needs nothing."""

    queues: list[LeasedQueue] = field(default_factory=list)


@dataclass(slots=True)
class JobRun(Body):
    """One run of a Spark job: GET_JOBS; the answer to RUN_JOB. Times in ms, 0: not yet."""

    run: str
    job: str
    state: str
    """waiting, starting, running, finished, failed, cancelled."""
    entry: str = ""
    """Of the schedule; empty for one that somebody asked for."""
    done: int = 0
    tasks: int = 0
    stage: str = ""
    """What the job is doing; done, tasks and what follows are of it."""
    rows_done: int = 0
    rows: int = 0
    """Messages that it will read; 0: not known."""
    remaining_ms: int | None = None
    """Until its end, estimated with the last progress."""
    sentence: str = ""
    """Why it failed."""
    report: dict[str, Any] = field(default_factory=dict)
    """Of the run that was asked about; empty for the others."""
    tail: list[str] = field(default_factory=list)
    """The last lines of the log of one that failed."""
    started_ms: int = 0
    ended_ms: int = 0


@dataclass(slots=True)
class JobEntry(Body):
    """One entry of the schedule of jobs: GET_JOBS."""

    name: str
    job: str
    cron: str
    time_zone: str
    next_ms: int = 0
    """When it runs next, as the clock goes now."""
    due_ms: int = 0
    """The occasion whose run is going on or will be tried again; 0 for none."""
    tries: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Jobs(Body):
    """The jobs there are, their runs, the oldest first, and the schedule: GET_JOBS."""

    jobs: list[str] = field(default_factory=list)
    runs: list[JobRun] = field(default_factory=list)
    schedule: list[JobEntry] = field(default_factory=list)


@dataclass(slots=True)
class JobLog(Body):
    """The last lines of one run's log: GET_JOB_LOG."""

    lines: list[str] = field(default_factory=list)
