"""A message that comes twice is consumed once."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Barrier, Thread

import pytest

from protocol.message import MessageRecord
from protocol.properties import format
from troupemq.client.consuming import idempotent
from troupemq.client.consuming.idempotent import (
    Idempotent,
    MemorySeen,
    Seen,
    SeenStore,
    SqliteSeen,
    by_keys,
)
from troupemq.client.consuming.listener import ConsumeResult, Result, RetryLater
from troupemq.client.message import MessageQueue, MessageView, view_of

QUEUE = MessageQueue("T", "b", 0)


def view(key: str, offset: int = 0) -> MessageView:
    record = MessageRecord("T", key.encode(), format({"KEYS": key}), queue_offset=offset)
    return view_of(record, QUEUE)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


Make = Callable[..., SeenStore]


@pytest.fixture(params=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    opened: list[SqliteSeen] = []

    def new(**options: object) -> SeenStore:
        if request.param == "memory":
            return MemorySeen(**options)  # type: ignore[arg-type]
        opened.append(SqliteSeen(tmp_path / "seen.db", **options))  # type: ignore[arg-type]
        return opened[-1]

    yield new
    for each in opened:
        each.close()


class Worker:
    def __init__(self, *results: Result | Exception) -> None:
        self.bodies: list[list[bytes]] = []
        self._results = list(results)

    def __call__(self, views: Sequence[MessageView]) -> Result:
        self.bodies.append([view.body for view in views])
        result = self._results.pop(0) if self._results else None
        if isinstance(result, Exception):
            raise result
        return result


def test_a_consumed_key_is_skipped_the_second_time(make: Make) -> None:
    worker = Worker()
    listener = Idempotent(worker, make())
    assert listener([view("a"), view("b")]) is None
    assert listener([view("a", 7), view("c")]) is None
    assert listener([view("b", 8)]) is None
    assert worker.bodies == [[b"a", b"b"], [b"c"]]


@pytest.mark.parametrize("failure", [ValueError("no"), ConsumeResult.RETRY_LATER, RetryLater()])
def test_a_failed_key_is_consumed_again(make: Make, failure: Result | Exception) -> None:
    worker = Worker(failure)
    listener = Idempotent(worker, make())
    if isinstance(failure, ValueError):
        with pytest.raises(ValueError, match="no"):
            listener([view("a")])
    else:
        result = listener([view("a")])
        assert isinstance(result, RetryLater)
    assert listener([view("a")]) is None
    assert worker.bodies == [[b"a"], [b"a"]]


def test_only_the_failed_keys_of_a_batch_are_consumed_again(make: Make) -> None:
    first, second = view("a"), view("b")
    worker = Worker(RetryLater([second]))
    listener = Idempotent(worker, make())
    result = listener([first, second])
    assert isinstance(result, RetryLater) and list(result.messages or ()) == [second]
    assert listener([first, second]) is None
    assert worker.bodies == [[b"a", b"b"], [b"b"]]


def test_a_key_in_flight_at_another_listener_is_retried_later(make: Make) -> None:
    store = make()
    begun, other = view("a"), view("b")
    assert store.begin(by_keys(begun)) is Seen.NEW
    worker = Worker()
    result = Idempotent(worker, store)([begun, other])
    assert isinstance(result, RetryLater) and list(result.messages or ()) == [begun]
    assert worker.bodies == [[b"b"]]
    store.finish([by_keys(begun)])
    assert Idempotent(worker, store)([begun]) is None
    assert worker.bodies == [[b"b"]]


def test_a_key_repeated_in_one_call_is_consumed_once(make: Make) -> None:
    first, again = view("a"), view("a", 1)
    worker = Worker()
    listener = Idempotent(worker, make())
    result = listener([first, again])
    assert isinstance(result, RetryLater) and list(result.messages or ()) == [again]
    assert listener([again]) is None
    assert worker.bodies == [[b"a"]]


def test_a_key_of_a_crashed_listener_is_free_after_its_lease(make: Make) -> None:
    clock = Clock()
    store = make(lease_s=60.0, clock_s=clock)
    assert store.begin("k") is Seen.NEW
    clock.now_s += 59
    assert store.begin("k") is Seen.BEGUN
    clock.now_s += 2
    assert store.begin("k") is Seen.NEW
    assert store.begin("k") is Seen.BEGUN


def test_only_one_of_many_concurrent_callers_gets_a_key(make: Make) -> None:
    store, barrier, said = make(), Barrier(8), []

    def begin() -> None:
        barrier.wait()
        said.append(store.begin("k"))

    threads = [Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.value for each in said) == ["begun"] * 7 + ["new"]


def test_memory_keeps_the_newest_keys() -> None:
    store = MemorySeen(keys_max=2)
    for key in ("a", "b", "c"):
        store.begin(key)
        store.finish([key])
    assert [store.begin(key) for key in ("a", "b", "c")] == [
        Seen.NEW,
        Seen.FINISHED,
        Seen.FINISHED,
    ]


def test_sqlite_keeps_keys_over_a_restart_and_drops_old_ones(tmp_path: Path) -> None:
    clock = Clock()
    for expected in (Seen.NEW, Seen.FINISHED):
        store = SqliteSeen(tmp_path / "seen.db", keep_s=100, clock_s=clock)
        assert store.begin("k") is expected
        store.finish(["k"])
        store.close()
    clock.now_s += 101
    store = SqliteSeen(tmp_path / "seen.db", keep_s=100, clock_s=clock)
    store.finish(["other"])
    assert store.begin("k") is Seen.NEW
    store.close()


def test_sqlite_file_opens_while_another_process_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sqlite3.connect(tmp_path / "seen.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(idempotent, "sleep", lambda _s: other.rollback())
    with SqliteSeen(tmp_path / "seen.db") as store:
        assert store.begin("k") is Seen.NEW
    other.close()


def test_sqlite_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match=f"^cannot open '{tmp_path}': unable to"):
        SqliteSeen(tmp_path)


def test_full_disk_is_reported_as_such_and_leaves_no_transaction(tmp_path: Path) -> None:
    with SqliteSeen(tmp_path / "seen.db") as store:
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count={pages}").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
            store.finish([f"{number:0200}" for number in range(100)])
        store.finish(["k"])
        assert store.begin("k") is Seen.FINISHED


def test_a_message_without_keys_is_identified_by_its_id() -> None:
    record = MessageRecord("T", b"", format({"UNIQ_KEY": "4711"}))
    assert by_keys(view_of(record, QUEUE)) == "T 4711"
