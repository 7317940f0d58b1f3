"""Idempotent: a listener that skips duplicates of consumed messages, by a key of the application.

    def listen(messages): ...

    with SqliteSeen("seen.db") as seen:
        with PushConsumer("billing", Idempotent(listen, seen)) as consumer:
            consumer.subscribe("Orders")

The key is marked as begun before the message is consumed, and as finished afterwards. A message
with a finished key is skipped. If another call has begun the key, the message is retried later, so
that it is not lost if that call fails. If the process dies between the listener's work and
`finish`, the work is repeated. Only one database transaction around both avoids that.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from sqlite3 import Connection, DatabaseError, OperationalError, connect
from threading import Lock
from time import monotonic, sleep, time
from typing import Protocol, Self

from troupemq.client.arguments import MS_MAX, check_instance, check_integer
from troupemq.client.callbacks import check_callback, unknown_result
from troupemq.client.consuming.listener import (
    ConsumeResult,
    Listener,
    Result,
    RetryLater,
    failure_of,
)
from troupemq.client.errors import ArgumentIllegal
from troupemq.client.message import MessageView

LEASE_S = 15 * 60.0
"""Lease of a begun key, in case its listener dies; as the default of `consume_timeout_ms`."""

MEMORY_KEYS_MAX = 100_000
KEEP_S = 3 * 24 * 3600.0
"""Retention of finished keys, the brokers' default retention of messages."""

SQLITE_TIMEOUT_S = 10.0
OPEN_AGAIN_S = 0.01
FORGET_EVERY = 1000

Key = Callable[[MessageView], str]


class Seen(Enum):
    """State of a key in a store."""

    NEW = "new"
    BEGUN = "begun"
    FINISHED = "finished"


class SeenStore(Protocol):
    """Store of keys and their states; for any thread, and if it is shared, for any process."""

    def begin(self, key: str) -> Seen:
        """Return the state of a key, and turn NEW into BEGUN atomically: one caller gets NEW."""

    def finish(self, keys: Sequence[str]) -> None:
        """Mark the keys of consumed messages as FINISHED."""

    def forget(self, keys: Sequence[str]) -> None:
        """Mark the keys of failed messages as NEW."""


def by_keys(view: MessageView) -> str:
    """Return the topic and the message's keys, or its id if it has no keys."""
    return f"{view.topic} {' '.join(view.keys) or view.message_id}"


class Idempotent:
    """A listener that passes each message to another listener once; for any thread.

    `key` returns the same text for duplicates. To cover all members of a group, they must share
    the store.
    """

    def __init__(self, listener: Listener, store: SeenStore, key: Key = by_keys) -> None:
        check_callback(listener, "the listener", "messages")
        check_callback(key, "key", "message")
        for name, given in (("begin", "key"), ("finish", "keys"), ("forget", "keys")):
            check_callback(getattr(store, name, None), f"the store's {name}", given)
        self._listener = listener
        self._store = store
        self._key = key

    def __call__(self, views: Sequence[MessageView]) -> Result:
        begun: dict[str, MessageView] = {}
        later: list[MessageView] = []
        try:
            for key, view in [(self._key_of(view), view) for view in views]:
                if key in begun:
                    later.append(view)  # a duplicate in the same call: retry after the first one
                    continue
                seen = self._store.begin(key)
                if seen is Seen.NEW:
                    begun[key] = view
                elif seen is Seen.BEGUN:
                    later.append(view)
                elif seen is not Seen.FINISHED:  # an unknown result must not count as consumed
                    raise unknown_result(seen, "the store's begin", "it returns a Seen")
        except BaseException:
            self._store.forget(list(begun))
            raise
        result = self._consume(begun) if begun else None
        if not later:
            return result
        if isinstance(result, RetryLater) and result.messages is not None:
            return result.of([*result.messages, *later])
        if result is None or result is ConsumeResult.SUCCESS:
            return RetryLater(later, reason="another call has begun the same key")
        failed = [*begun.values(), *later]
        return RetryLater([view for view in views if any(view is each for each in failed)])

    def _key_of(self, view: MessageView) -> str:
        key = self._key(view)
        if not isinstance(key, str) or not key:  # all messages without a key would be duplicates
            raise unknown_result(key, "key", "it returns a string that is not empty")
        return key

    def _consume(self, begun: dict[str, MessageView]) -> Result:
        views = list(begun.values())
        try:
            try:
                result = self._listener(views)
            except RetryLater as raised:
                result = raised
            failure_of(result, views)
        except BaseException:
            self._store.forget(list(begun))
            raise
        if isinstance(result, RetryLater) and result.messages is not None:
            failed = {id(view) for view in result.messages}
            self._store.forget([key for key, view in begun.items() if id(view) in failed])
            self._store.finish([key for key, view in begun.items() if id(view) not in failed])
        elif result is None or result is ConsumeResult.SUCCESS:
            self._store.finish(list(begun))
        else:
            self._store.forget(list(begun))
            if isinstance(result, RetryLater):  # for the messages it got, not for skipped ones
                return result.of(views)
            return RetryLater(views)
        return result


class MemorySeen:
    """SeenStore in memory, for one process; a restart forgets the keys."""

    def __init__(
        self,
        keys_max: int = MEMORY_KEYS_MAX,
        lease_s: float = LEASE_S,
        clock_s: Callable[[], float] = time,
    ) -> None:
        """Keep the newest `keys_max` finished keys; `clock_s` returns seconds."""
        check_integer(keys_max, 1, MS_MAX, "keys_max")
        _check_times(lease_s=lease_s)
        self._keys_max = keys_max
        self._lease_s = lease_s
        self._clock_s = clock_s
        self._lock = Lock()
        self._begun: dict[str, float] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()

    def begin(self, key: str) -> Seen:
        with self._lock:
            if key in self._finished:
                return Seen.FINISHED
            now_s, since_s = self._clock_s(), self._begun.get(key)
            if since_s is not None and now_s - since_s < self._lease_s:
                return Seen.BEGUN
            self._begun[key] = now_s
            return Seen.NEW

    def finish(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._begun.pop(key, None)
                self._finished[key] = None
                self._finished.move_to_end(key)
            while len(self._finished) > self._keys_max:
                self._finished.popitem(last=False)

    def forget(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._begun.pop(key, None)


class SqliteSeen:
    """SeenStore in an SQLite file, which the consumers of one machine may share.

        CREATE TABLE seen (key TEXT PRIMARY KEY, finished INTEGER, at REAL)

    `at` is the time of begin or finish, in seconds since 1970. Every change is synced.
    """

    def __init__(
        self,
        path: str | Path,
        keep_s: float = KEEP_S,
        lease_s: float = LEASE_S,
        clock_s: Callable[[], float] = time,
    ) -> None:
        """Open the file; finished keys are deleted after `keep_s`. Raises sqlite3.Error."""
        check_instance(path, str | Path, "path is a file")
        _check_times(keep_s=keep_s, lease_s=lease_s)
        self._keep_s = keep_s
        self._lease_s = lease_s
        self._clock_s = clock_s
        self._lock = Lock()
        self._until_forget = 0
        self._database = _opened(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; stop the consumers that use it first."""
        with self._lock:
            self._database.close()

    def begin(self, key: str) -> Seen:
        now_s = self._clock_s()
        with self._lock:
            inserted = self._database.execute(
                "INSERT INTO seen VALUES (?, 0, ?) ON CONFLICT (key) DO UPDATE SET at = excluded.at"
                " WHERE finished = 0 AND at <= ?",
                (key, now_s, now_s - self._lease_s),
            )
            if inserted.rowcount:
                return Seen.NEW
            rows = self._database.execute(
                "SELECT finished FROM seen WHERE key = ?", (key,)
            ).fetchall()
        # Without a row, another process has just forgotten the key: a retry can begin it.
        return Seen.FINISHED if rows and rows[0][0] else Seen.BEGUN

    def finish(self, keys: Sequence[str]) -> None:
        now_s = self._clock_s()
        with self._lock:
            self._in_one(
                "INSERT INTO seen VALUES (?, 1, ?)"
                " ON CONFLICT (key) DO UPDATE SET finished = 1, at = excluded.at",
                [(key, now_s) for key in keys],
            )
            self._until_forget -= len(keys)
            if self._until_forget <= 0:
                self._until_forget = FORGET_EVERY
                self._database.execute(
                    "DELETE FROM seen WHERE finished = 1 AND at < ?", (now_s - self._keep_s,)
                )

    def forget(self, keys: Sequence[str]) -> None:
        with self._lock:
            self._in_one(
                "DELETE FROM seen WHERE key = ? AND finished = 0", [(key,) for key in keys]
            )

    def _in_one(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            self._database.executemany(statement, rows)
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # a full disk has ended it
                self._database.execute("ROLLBACK")
            raise


def _opened(path: str | Path) -> Connection:
    """Return a database that is ready. Raises sqlite3.Error with the path.

    SQLite does not wait while another process that starts makes the file one with a WAL.
    """
    until_s = monotonic() + SQLITE_TIMEOUT_S
    while True:
        try:
            database = connect(
                path, timeout=SQLITE_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                _prepare(database)
            except BaseException:
                database.close()
                raise
            return database
        except DatabaseError as error:
            is_locked = isinstance(error, OperationalError) and "locked" in str(error)
            if not is_locked or monotonic() >= until_s:
                raise type(error)(f"cannot open {str(path)!r}: {error}") from error
        sleep(OPEN_AGAIN_S)


def _prepare(database: Connection) -> None:
    # Fetch all rows: with PyPy an unfinished statement stays active.
    database.execute("PRAGMA journal_mode=WAL").fetchall()
    database.execute("PRAGMA synchronous=FULL")
    database.execute(
        "CREATE TABLE IF NOT EXISTS seen (key TEXT PRIMARY KEY, finished INTEGER, at REAL)"
        " WITHOUT ROWID"
    )
    database.execute("CREATE INDEX IF NOT EXISTS seen_at ON seen (at)")


def _check_times(**times_s: object) -> None:
    for name, time_s in times_s.items():
        if isinstance(time_s, bool) or not isinstance(time_s, int | float) or not time_s >= 0:
            raise ArgumentIllegal(f"{name} is a number of seconds, and not {time_s!r}")
