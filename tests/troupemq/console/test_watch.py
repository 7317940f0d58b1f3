"""The watch takes one snapshot for all requests, and never two at once."""

from concurrent.futures import ThreadPoolExecutor
from math import inf
from queue import SimpleQueue
from threading import Event, Lock

from troupemq.client.admin import BrokerPlace
from troupemq.console.snapshot import BrokerSummary, ClusterSnapshot, GroupSummary
from troupemq.console.watch import (
    FRESH_S,
    HISTORY_COUNT,
    INTERVAL_S,
    SHARE,
    STALE_INTERVALS,
    ClusterWatch,
)

PLACE = BrokerPlace("C", "a", 0, "h:1")
WAIT_S = 20.0


class Taker:
    def __init__(self) -> None:
        self.count = 0
        self.now_s = 1000.0
        self.took_s = 0.1
        self.may_go = Event()
        self.may_go.set()
        self.running = Lock()

    def __call__(self) -> ClusterSnapshot:
        assert self.running.acquire(blocking=False), "two at once"
        assert self.may_go.wait(WAIT_S)
        self.count += 1
        self.running.release()
        says = {"putTps": "2.0 1.0 1.0", "getTransferedTps": "3.0"}
        groups = {"g": GroupSummary("g", 4), "h": GroupSummary("h", 5)}
        return ClusterSnapshot(self.count, self.took_s, [BrokerSummary(PLACE, says)], groups=groups)


def test_a_snapshot_serves_all_requests_until_it_expires() -> None:
    taker = Taker()
    watch = ClusterWatch(taker, clock=lambda: taker.now_s)
    assert watch.newest().taken_ms == watch.newest().taken_ms == 1
    taker.now_s += INTERVAL_S + 0.1
    assert watch.newest().taken_ms == 2
    watch.forget()
    assert watch.newest().taken_ms == 3
    assert [(each.in_tps, each.out_tps, each.lag) for each in watch.history] == [(2.0, 3.0, 9)] * 3


def test_slow_snapshots_are_taken_less_often() -> None:
    taker = Taker()
    taker.took_s = 2.0
    watch = ClusterWatch(taker, clock=lambda: taker.now_s)
    watch.newest()
    taker.now_s += SHARE * 2.0 - 1
    assert watch.newest().taken_ms == 1
    taker.now_s += 2
    assert watch.newest().taken_ms == 2


def test_a_page_that_opens_fresh_has_no_state_older_than_two_seconds() -> None:
    taker = Taker()
    watch = ClusterWatch(taker, clock=lambda: taker.now_s)
    watch.renew()
    taker.now_s += FRESH_S - 0.1
    watch.renew()
    assert watch.newest().taken_ms == 1
    taker.now_s += 0.1
    watch.renew()
    assert watch.newest().taken_ms == 2
    taker.took_s = 4.0
    taker.now_s += 2 * FRESH_S
    watch.renew()
    taker.now_s += FRESH_S
    watch.renew()
    assert taker.count == 3, "a snapshot that takes long may be as old"


def test_an_idle_console_shows_no_old_state_while_its_thread_pauses() -> None:
    """Regression: the first page after a pause had a snapshot of up to a minute before."""
    taker = Taker()
    watch = ClusterWatch(taker, clock=lambda: taker.now_s)
    watch.newest()
    watch.start()
    try:
        taker.now_s += STALE_INTERVALS * INTERVAL_S + 0.1
        assert watch.newest().taken_ms >= 2
    finally:
        assert watch.stop(WAIT_S)


def test_the_thread_sends_alerts_of_a_snapshot_that_a_page_has_taken() -> None:
    taker = Taker()
    told: SimpleQueue[int] = SimpleQueue()
    watch = ClusterWatch(taker, lambda snapshot: told.put(snapshot.taken_ms))
    watch.newest()
    watch._round(-inf)
    watch._round(watch._taken_s)
    assert [told.get(timeout=WAIT_S) for _ in range(2)] == [1, 2]


def test_concurrent_requests_wait_for_one_snapshot() -> None:
    taker = Taker()
    watch = ClusterWatch(taker, clock=lambda: taker.now_s)
    taker.may_go.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(watch.newest) for _ in range(8)]
        taker.may_go.set()
        assert {each.result(WAIT_S).taken_ms for each in asked} <= {1, 2}
    assert taker.count <= 2


def test_the_history_of_charts_is_bounded() -> None:
    taker = Taker()
    watch = ClusterWatch(taker, clock=lambda: taker.now_s)
    for _ in range(HISTORY_COUNT + 10):
        watch.forget()
        watch.newest()
    assert len(watch.history) == HISTORY_COUNT


def test_the_thread_takes_snapshots_for_alerts_without_requests() -> None:
    taker = Taker()
    told = Event()
    watch = ClusterWatch(taker, lambda snapshot: told.set(), clock=lambda: taker.now_s)
    watch._pause_s = lambda: 0.01  # type: ignore[method-assign]
    watch.start()
    assert told.wait(WAIT_S)
    assert watch.stop(WAIT_S)


def test_a_failed_round_does_not_end_the_alerts() -> None:
    """Regression: the thread ended, and no alerts were sent until the next start."""
    taker = Taker()
    rounds, told = iter(range(2)), Event()

    def look(snapshot: ClusterSnapshot) -> None:
        if next(rounds, None) is not None:
            raise LookupError("an odd answer")
        told.set()

    watch = ClusterWatch(taker, look, clock=lambda: taker.now_s)
    watch._pause_s = lambda: 0.01  # type: ignore[method-assign]
    watch.start()
    assert told.wait(WAIT_S)
    assert watch.stop(WAIT_S)


def test_without_alerts_and_requests_no_snapshots_are_taken() -> None:
    taker = Taker()
    looked = Event()
    watch = ClusterWatch(taker, clock=lambda: taker.now_s)
    turns = iter(range(5))

    def pause_s() -> float:
        if next(turns, None) is None:
            looked.set()
        return 0.001

    watch._pause_s = pause_s  # type: ignore[method-assign]
    watch.start()
    assert looked.wait(WAIT_S) and taker.count == 0
    assert watch.stop(WAIT_S)
