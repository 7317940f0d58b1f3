"""The JSON bodies of TroupeMQ extensions.

Their codes lie far from all of RocketMQ's, later versions included; RocketMQ's clients
never ask them, and its brokers answer 3 to them.
"""

from dataclasses import field
from typing import Any

from protocol.bodies import MessageQueue
from protocol.bodies_admin import ConsumeStatsBody, ConsumeStatsList, OffsetWrapper
from protocol.json_body import Body, value


@value
class OffsetProgress(OffsetWrapper):
    """Progress of a group in a queue; times in ms, 0 if unknown.

    `pull_offset` is None if nothing was pulled or received since the start.
    """

    moved_timestamp: int = 0
    """Time when the consumer offset last changed; 0: not since `observed_since`."""
    waiting_timestamp: int = 0
    """Time when the first message came that is not consumed; 0 without lag."""


@value
class ProgressStats(ConsumeStatsBody):
    """Progress of a group: GET_CONSUME_STATS with `withProgress`.

    A broker that does not know the field answers without times, which stay 0.
    """

    offset_table: dict[MessageQueue, OffsetProgress] = field(  # type: ignore[assignment]
        default_factory=dict
    )
    observed_since: int = 0
    """Time since which this broker notes changes of offsets."""
    answered_timestamp: int = 0
    """Time of the answer by the broker's clock."""
    held_since: int = 0
    """Time of the oldest receive whose messages are not acknowledged; 0 without one."""
    held_tries: int = 0
    """Most deliveries of such a message before the present one."""
    members: int = -1
    """Members of the group that are connected to this broker; -1: unknown."""
    stuck_after: int = 0
    """Time in ms without consumption after which a queue with waiting messages is stuck."""


@value
class ProgressList(ConsumeStatsList):
    """Progress of all groups: GET_BROKER_CONSUME_STATS with `withProgress`."""

    consume_stats_list: list[dict[str, list[ProgressStats]]] = field(  # type: ignore[assignment]
        default_factory=list
    )


@value
class GroupChange(Body):
    """Membership change of a consumer group: GET_GROUP_CHANGES."""

    timestamp: int
    """Time of the change, ms."""
    kind: str
    client_id: str
    client_addr: str
    why: str = ""
    members: int = 0
    """Members after the change."""


@value
class WantingClients(Body):
    """Members of a group with the same subscription to a topic. An empty expression means none."""

    expression: str
    count: int = 0
    client_ids: list[str] = field(default_factory=list)


@value
class SubscriptionMismatch(Body):
    """Topic with different subscriptions within a group: GET_GROUP_CHANGES."""

    topic: str
    wanted: list[WantingClients] = field(default_factory=list)


@value
class AclRefusal(Body):
    """Refusals of an account by one rule: GET_ACL_REFUSALS, GET_GROUP_CHANGES."""

    account: str
    group: str
    code: int
    count: int
    last_timestamp: int
    remark: str
    address: str
    """Address of the latest refused request."""


@value
class AclRefusals(Body):
    """Body of GET_ACL_REFUSALS: counts of refused requests, by account."""

    refusals: list[AclRefusal] = field(default_factory=list)


@value
class GroupChanges(Body):
    """Recent changes of a group, oldest first, and its subscription mismatches."""

    group: str
    members: int = 0
    changes: list[GroupChange] = field(default_factory=list)
    mismatches: list[SubscriptionMismatch] = field(default_factory=list)
    refusals: list[AclRefusal] = field(default_factory=list)


@value
class ActorLine(Body):
    """One actor of a broker: GET_ACTORS."""

    name: str
    is_up: bool
    inbox: int
    """Messages in the inbox."""
    handled: int
    restarts: int


@value
class ActorList(Body):
    """The actors of a broker: GET_ACTORS."""

    actors: list[ActorLine] = field(default_factory=list)
    slow_handlers: int = 0
    """Handlers that took longer than 50 ms."""
    longest_ms: int = 0
    """Longest handler on the loop since metrics were last read, else since the start."""
    longest_actor: str = ""
    longest_message: str = ""


@value
class DamagedPlace(Body):
    """Range of the commit log without a whole message: GET_STORE_STATE."""

    start: int
    end: int
    why: str


@value
class StoreState(Body):
    """State and damage of a broker's store: GET_STORE_STATE. Offsets are physical offsets."""

    log_files: int = 0
    log_file_bytes: int = 0
    log_start: int = 0
    log_end: int = 0
    flushed: int = 0
    """The log is flushed up to here."""
    dispatched: int = 0
    """The log is dispatched up to here."""
    queues: int = 0
    index_files: int = 0
    disk_bytes: int = 0
    """Size of the log's file system; 0 if unknown."""
    disk_free_bytes: int = 0
    damaged_places: int = 0
    damaged_bytes: int = 0
    damage: list[DamagedPlace] = field(default_factory=list)
    """Damaged ranges, at most the first ones."""
    damaged_tables: list[str] = field(default_factory=list)
    """Table files that the start found damaged."""
    found_at_start: list[str] = field(default_factory=list)
    """Irregularities found at the start, with their outcomes."""
    verified_percent: int = 0
    """Progress of the current verification round; 100 if none runs."""
    verified_ms: int = 0
    """End of the last whole verification round; 0 if none since the start."""


@value
class OpenTransaction(Body):
    """A half message without commit or rollback: GET_OPEN_TRANSACTIONS. Times in ms."""

    producer_group: str
    topic: str
    message_id: str
    """The producer's UNIQ_KEY."""
    offset_message_id: str
    physical_offset: int
    born_timestamp: int
    store_timestamp: int
    """Store time of the newest copy; each check-back makes one."""
    born_host: str
    check_times: int = 0


@value
class OpenTransactions(Body):
    """Some open transactions, oldest first, and their total number: GET_OPEN_TRANSACTIONS."""

    count: int = 0
    transactions: list[OpenTransaction] = field(default_factory=list)


@value
class LeasedQueue(Body):
    """A queue and the offset from which it is being read: LEASE_LOG."""

    topic: str
    queue_id: int
    queue_offset: int


@value
class LeasedQueues(Body):
    """Queues that a lease retains: LEASE_LOG. A missing queue needs nothing."""

    queues: list[LeasedQueue] = field(default_factory=list)


@value
class JobRun(Body):
    """One run of a Spark job: GET_JOBS; the answer to RUN_JOB. Times in ms, 0 if not reached."""

    run: str
    job: str
    state: str
    """One of waiting, starting, running, finished, failed, cancelled."""
    entry: str = ""
    """Entry of the schedule; empty for a requested run."""
    done: int = 0
    tasks: int = 0
    stage: str = ""
    """Current stage of the job; the numbers of tasks refer to it."""
    rows_done: int = 0
    rows: int = 0
    """Messages to read; 0 if unknown."""
    remaining_ms: int | None = None
    """Estimated remaining time."""
    sentence: str = ""
    """Reason of the failure."""
    report: dict[str, Any] = field(default_factory=dict)
    """Report of the requested run; empty for others."""
    tail: list[str] = field(default_factory=list)
    """Last log lines of a failed run."""
    started_ms: int = 0
    ended_ms: int = 0


@value
class JobEntry(Body):
    """One entry of the schedule of jobs: GET_JOBS."""

    name: str
    job: str
    cron: str
    time_zone: str
    next_ms: int = 0
    """Time of the next run by the current clock."""
    due_ms: int = 0
    """Occasion whose run is in progress or will be retried; 0 if none."""
    tries: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)


@value
class Jobs(Body):
    """Job names, runs (oldest first) and schedule: GET_JOBS."""

    jobs: list[str] = field(default_factory=list)
    runs: list[JobRun] = field(default_factory=list)
    schedule: list[JobEntry] = field(default_factory=list)


@value
class JobLog(Body):
    """The last lines of one run's log: GET_JOB_LOG."""

    lines: list[str] = field(default_factory=list)
