"""A listener for messages that may come twice: it consumes each once, by what the application says
makes them the same.

    def listen(messages): ...

    with SqliteSeen("seen.db") as seen:
        with PushConsumer("billing", Idempotent(listen, seen)) as consumer:
            consumer.subscribe("Orders")

A key is begun before its message is consumed and finished after it. One that is finished is
skipped; one that another listener has begun comes again later, and so is not lost if that one
fails. A process that dies between the listener's own work and `finish` repeats that work: only
where both are in one database transaction is that closed too.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from sqlite3 import Connection, connect
from threading import Lock
from time import time
from typing import Protocol, Self

from troupemq.client.callbacks import check_callback, unknown_result
from troupemq.client.consuming.listener import (
    ConsumeResult,
    Listener,
    Result,
    RetryLater,
    failure_of,
    reason_of,
)
from troupemq.client.message import MessageView

LEASE_S = 15 * 60.0
"""How long a key that was begun and not finished keeps others away: its listener may be dead. As
long as a push consumer's `consume_timeout_ms`."""

MEMORY_KEYS_MAX = 100_000
KEEP_S = 3 * 24 * 3600.0
"""As long as brokers keep messages by default."""

SQLITE_TIMEOUT_S = 10.0
FORGET_EVERY = 1000

Key = Callable[[MessageView], str]


class Seen(Enum):
    """What a store knows of a key."""

    NEW = "new"
    BEGUN = "begun"
    FINISHED = "finished"


class SeenStore(Protocol):
    """Keys of messages; for any thread, and where it is shared, for any process."""

    def begin(self, key: str) -> Seen:
        """What was known of it. NEW makes it BEGUN, atomically: only one caller gets NEW."""

    def finish(self, keys: Sequence[str]) -> None:
        """These are consumed."""

    def forget(self, keys: Sequence[str]) -> None:
        """These failed: they are NEW again."""


def by_keys(view: MessageView) -> str:
    """Topic and KEYS; the message's id where it has none."""
    return f"{view.topic} {' '.join(view.keys) or view.message_id}"


class Idempotent:
    """A listener around another one. `key` says which messages are the same; of a group's consumers
    each must have the same store for it to hold across them."""

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
                    later.append(view)  # the second of one call waits for the end of the first
                    continue
                seen = self._store.begin(key)
                if seen is Seen.NEW:
                    begun[key] = view
                elif seen is Seen.BEGUN:
                    later.append(view)
                elif seen is not Seen.FINISHED:  # else it would count as consumed
                    raise unknown_result(seen, "the store's begin", "it returns a Seen")
        except BaseException:
            self._store.forget(list(begun))
            raise
        result = self._consume(begun) if begun else None
        if not later:
            return result
        if isinstance(result, RetryLater) and result.messages is not None:
            return RetryLater(
                [*result.messages, *later],
                result.delay_level,
                result.suspend_ms,
                reason_of(result),
            )
        if result is None or result is ConsumeResult.SUCCESS:
            return RetryLater(later, reason="another call has begun the same key")
        failed = [*begun.values(), *later]
        return RetryLater([view for view in views if any(view is each for each in failed)])

    def _key_of(self, view: MessageView) -> str:
        key = self._key(view)
        if not isinstance(key, str) or not key:  # else all without a key were the same message
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
            if isinstance(result, RetryLater):  # of those it was given, not of those skipped
                return RetryLater(views, result.delay_level, result.suspend_ms, reason_of(result))
            return RetryLater(views)
        return result


class MemorySeen:
    """The last keys of this process; a restart forgets them."""

    def __init__(
        self,
        keys_max: int = MEMORY_KEYS_MAX,
        lease_s: float = LEASE_S,
        clock_s: Callable[[], float] = time,
    ) -> None:
        """`keys_max` finished ones are kept, the newest."""
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
    """Keys in an SQLite file that the consumers of one machine may share.

        CREATE TABLE seen (key TEXT PRIMARY KEY, finished INTEGER, at REAL)

    `at` is in seconds since 1970: when it was begun, or finished. Every change is synced.
    """

    def __init__(
        self,
        path: str | Path,
        keep_s: float = KEEP_S,
        lease_s: float = LEASE_S,
        clock_s: Callable[[], float] = time,
    ) -> None:
        """Finished keys are forgotten after `keep_s`. Raises sqlite3.Error."""
        self._keep_s = keep_s
        self._lease_s = lease_s
        self._clock_s = clock_s
        self._lock = Lock()
        self._until_forget = 0
        self._database: Connection = connect(
            path, timeout=SQLITE_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        # What gives rows is read to its end, or the statement goes on with PyPy.
        self._database.execute("PRAGMA journal_mode=WAL").fetchall()
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS seen (key TEXT PRIMARY KEY, finished INTEGER, at REAL)"
            " WITHOUT ROWID"
        )
        self._database.execute("CREATE INDEX IF NOT EXISTS seen_at ON seen (at)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file: not before the consumers that use it have stopped."""
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
        # Without a row another process has just given it up: it may be begun the next time.
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
        """One transaction for all of them."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            self._database.executemany(statement, rows)
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
