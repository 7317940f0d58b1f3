"""The index is rebuilt from the commit log while the broker serves, despite failures."""

from dataclasses import replace
from random import Random

import pytest
from structlog.testing import capture_logs

from actors.dispatching.catch_up import PACE_MS, REST_BUSY, REST_IDLE, REST_MS_MIN, Pace
from actors.dispatching.messages import RebuildIndex
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import QueryMessageHeader
from storage.checking.index_check import checks_of
from storage.errors import DiskFull
from storage.index.index import Index
from storage.index.index_file import IndexFile
from storage.index.key_columns import KeyPart
from tests.support.brokers import STORE, SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk

COUNT = 300
SLICE = 8
SEEDS = range(5)


class Unknown:
    """Message without a handler: its receiver fails."""


@pytest.fixture(autouse=True, params=["in parts", "one by one"])
def small_steps(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Slices of a few records, and a hand-over that leaves a gap of some kilobytes.

    Where the index alone is behind it is given keys in parts, or is not.
    """
    if request.param == "in parts":
        monkeypatch.setattr("actors.dispatching.catch_up.FAR_BYTES", 2048)
        monkeypatch.setattr("actors.dispatching.catch_up.KEY_PART_BYTES", 1024)
    monkeypatch.setattr("actors.dispatching.catch_up.SLICE_RECORDS", SLICE)
    monkeypatch.setattr("actors.dispatching.reput.SLICE_RECORDS", SLICE)
    monkeypatch.setattr("actors.dispatching.catch_up.NEAR_BYTES", 8192)
    monkeypatch.setattr("storage.index.index.PENDING_MAX", 32)


def filled(seed: int = 1, count: int = COUNT) -> SimulatedBroker:
    """A broker with messages, each with a key; its index has two full files."""
    # few actors, so that a stop does not take so many steps that all is caught up by then
    made = SimulatedBroker(seed, FakeDisk(), store_config=replace(STORE, message_delay_level="1s"))
    made.make_topic()
    send(made, range(count))
    made.system.advance(1000)
    return made


def send(made: SimulatedBroker, numbers: range) -> None:
    answers: list[RemotingCommand] = []
    for number in numbers:
        answers += [made.send(b"%d" % number, queue_id=number % 4, properties=key_of(number))]
    assert {answer.code for answer in answers} <= {ResponseCode.SUCCESS}


def key_of(number: int) -> str:
    return f"KEYS\x01key{number}"


def index_of(made: SimulatedBroker) -> Index:
    index = made.broker.store.index
    assert index is not None
    return index


def is_behind(made: SimulatedBroker) -> bool:
    return "index" in made.broker.store.lagging.behind


def is_fed(made: SimulatedBroker) -> bool:
    return index_of(made) in made.broker.store.dispatcher.followers


def caught_up(made: SimulatedBroker) -> None:
    made.system.run_until(lambda: is_fed(made))
    made.system.advance(300)


def every_key_once(made: SimulatedBroker, count: int) -> None:
    """All keys are in the index, each once, and the files are what the log asks for."""
    index, store = index_of(made), made.broker.store
    assert sum(file.next_entry - 1 for file in index.files) == count
    for number in range(count):
        assert len(index.query("Topic", f"key{number}", 64, 0, 1 << 62).physical_offsets) == 1
    checks = checks_of(
        store.config,
        store.disk,
        store.commit_log,
        store.damage,
        store.lagging.reader,
        index.files,
    )
    for check in checks:
        while not check.step():
            pass
        assert check.reason == ""
        check.close()


def query(made: SimulatedBroker, number: int) -> RemotingCommand:
    header = QueryMessageHeader("Topic", f"key{number}", 32, 0, 1 << 62)
    return made.ask(RemotingCommand(RequestCode.QUERY_MESSAGE, header.encode()))


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_crash_the_index_is_rebuilt_while_messages_arrive(seed: int) -> None:
    made = filled(seed)
    with capture_logs() as lines:
        made.restart_killed()
        assert is_behind(made) and not is_fed(made)
        send(made, range(COUNT, COUNT + 50))
        caught_up(made)
    send(made, range(COUNT + 50, COUNT + 60))
    made.system.advance(300)
    every_key_once(made, COUNT + 60)
    events = [line["event"] for line in lines if line["event"].startswith("catch-up")]
    assert events == ["catch-up started", "catch-up ended"]


def test_a_far_lagging_index_gets_its_keys_from_parallel_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.dispatching.catch_up.FAR_BYTES", 2048)
    monkeypatch.setattr("actors.dispatching.catch_up.KEY_PART_BYTES", 1024)
    take, taken = Index.dispatch_part, list[int]()

    def taking(index: Index, part: KeyPart) -> None:
        taken.append(part.record_count)
        take(index, part)

    monkeypatch.setattr(Index, "dispatch_part", taking)
    made = filled()
    made.system.address("reput").tell(RebuildIndex(index_of(made).files[0].path, "it is wrong"))
    made.system.run_until(lambda: is_behind(made))
    send(made, range(COUNT, COUNT + 50))
    caught_up(made)
    every_key_once(made, COUNT + 50)
    assert len(taken) > 10 and sum(taken) > COUNT / 2


def test_a_query_during_catch_up_is_answered_from_the_existing_index() -> None:
    made = filled()
    made.restart_killed()
    assert is_behind(made)
    assert query(made, COUNT - 1).code == ResponseCode.QUERY_NOT_FOUND
    made.system.run_until(lambda: len(index_of(made).files) >= 1)
    assert query(made, 5).code == ResponseCode.SUCCESS
    caught_up(made)
    assert query(made, COUNT - 1).code == ResponseCode.SUCCESS


@pytest.mark.trial(short=1, long=20)
@pytest.mark.parametrize("who", ["catch_up", "reput", "flush_real_time"])
@pytest.mark.parametrize("fed_ms", [0, 5, 15, 34, 36, 38])
def test_index_is_completed_after_any_actor_fails(seed: int, who: str, fed_ms: int) -> None:
    made = filled(seed)
    made.restart_killed()
    made.system.advance(fed_ms)
    made.system.address(who).tell(Unknown())
    send(made, range(COUNT, COUNT + 20))
    caught_up(made)
    every_key_once(made, COUNT + 20)
    assert made.system.address(who).incarnation == 2


def test_a_stop_during_catch_up_is_immediate_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.message_store.STOP_CATCH_UP_MS", 0)
    made = filled(count=3 * COUNT)
    made.restart_killed()
    made.system.run_until(lambda: len(index_of(made).files) >= 2)
    assert is_behind(made)
    made.start_ms = made.system.clock.now_ms()
    stopped_from_ms = made.clock.monotonic_ms()
    made.stop()
    assert made.clock.monotonic_ms() - stopped_from_ms < 1000
    made.start()
    covered = index_of(made).covered_offset
    assert 0 < covered < made.broker.store.commit_log.end_offset
    caught_up(made)
    every_key_once(made, 3 * COUNT)


def test_a_stop_completes_a_short_catch_up() -> None:
    """The original goes on where the queues end, and would leave a hole in the index."""
    made = filled()
    made.restart_killed()
    assert is_behind(made)
    made.start_ms = made.system.clock.now_ms()
    made.stop()
    made.start()
    assert not is_behind(made)
    every_key_once(made, COUNT)


def test_messages_without_keys_are_not_read_again_at_each_start() -> None:
    made = SimulatedBroker(1, FakeDisk())
    made.make_topic()
    for number in range(20):
        made.send(b"%d" % number, queue_id=0)
    made.stop()
    with capture_logs() as lines:
        made.start()
        assert not is_behind(made)
        made.system.advance(1000)
    assert [line for line in lines if line["event"] == "catch-up started"] == []


def test_a_full_disk_delays_only_the_catch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made = filled()
    create, failures = IndexFile.create, [DiskFull("the disk is full")] * 3

    def refusing(file: IndexFile, *arguments: int) -> None:
        if failures:
            raise failures.pop()
        create(file, *arguments)

    monkeypatch.setattr(IndexFile, "create", refusing)
    with capture_logs() as lines:
        made.restart_killed()
        made.system.advance(2000)
        assert is_behind(made)
        send(made, range(COUNT, COUNT + 5))
        caught_up(made)
    every_key_once(made, COUNT + 5)
    said = [line["reason"] for line in lines if line["event"] == "catch-up failed"]
    assert said == ["the disk is full"]


def test_the_checkpoint_does_not_cover_files_being_rebuilt() -> None:
    """The old one named the time of full files that are gone; a power cut would believe it."""
    made = filled()
    made.system.advance(120_000)
    assert made.broker.store.checkpoint.index_ms > 0
    made.stop()
    disk = made.disk
    assert isinstance(disk, FakeDisk)
    for name in disk.listdir("/store/index"):
        disk.unlink(f"/store/index/{name}")
    made.start()
    made.system.run_until(lambda: bool(index_of(made).files))
    assert made.broker.store.checkpoint.index_ms == 0
    caught_up(made)
    every_key_once(made, COUNT)
    made.system.advance(1000)
    assert made.broker.store.checkpoint.index_ms == index_of(made).full_until_ms > 0


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_invalid_index_file_and_newer_ones_are_rebuilt(seed: int, number: int) -> None:
    made = filled(seed)
    path = index_of(made).files[number].path
    made.broker.store.disk.open(path).pwrite(b"\xff", 40 + 64 * 4 + 30 * 20 + 7)
    made.system.address("reput").tell(RebuildIndex(path, "an entry is wrong"))
    made.system.run_until(lambda: is_behind(made))
    send(made, range(COUNT, COUNT + 20))
    caught_up(made)
    assert path not in [file.path for file in index_of(made).files]
    assert not made.broker.store.disk.exists(path)
    every_key_once(made, COUNT + 20)


def test_an_invalid_file_found_during_a_rebuild_is_rebuilt_too() -> None:
    made = filled(1, 500)
    disk = made.disk
    assert isinstance(disk, FakeDisk)
    made.stop()
    disk.open(index_of(made).files[-1].path).pwrite(b"\xff" * 8, 24)
    made.start()
    assert is_behind(made)
    path = index_of(made).files[0].path
    made.system.address("reput").tell(RebuildIndex(path, "an entry is wrong"))
    caught_up(made)
    assert path not in [file.path for file in index_of(made).files]
    every_key_once(made, 500)


@pytest.mark.trial(short=2, long=200)
def test_power_cuts_during_a_rebuild_leave_no_hole(seed: int) -> None:
    """Whatever of the unsynced pages of the index survives, it is judged and completed."""
    print(f"seed {seed}")
    random = Random(seed)
    made = SimulatedBroker(
        seed, FakeDisk(), store_config=replace(STORE, flush_disk_type="SYNC_FLUSH")
    )
    made.make_topic()
    count = 0
    for _ in range(4):
        send(made, range(count, count + 120))
        count += 120
        made.system.advance(random.choice((1, 5, 20, 300, 1500, 70_000)))
        disk = made.disk
        assert isinstance(disk, FakeDisk)
        made.crash()
        made.disk = disk.crashed(random.randrange(1 << 30))
        made.start()
        made.system.advance(random.choice((1, 5, 10, 20)))
    caught_up(made)
    every_key_once(made, count)


def test_catch_up_pauses_longer_while_messages_arrive() -> None:
    pace = Pace()
    assert pace.rest_ms(4, 0, 1000, 0) == 4 * REST_IDLE
    assert pace.rest_ms(4, 100, 1000, 10) == 4 * REST_IDLE
    assert pace.rest_ms(4, 200, 1001, 20) == 4 * REST_BUSY
    assert pace.rest_ms(0.1, 300, 1001, 30) == REST_MS_MIN


def test_catch_up_pauses_less_when_its_lag_grows() -> None:
    pace = Pace()
    rests = [pace.rest_ms(100, step, 10_000 + 2 * step, step * PACE_MS) for step in range(1, 9)]
    assert rests[1:] == [150, 75, 37.5, 25, 25, 25, 25]
    pace = Pace()
    rests = [pace.rest_ms(100, 2 * step, 10_000 + step, step * PACE_MS) for step in range(1, 9)]
    assert set(rests[1:]) == {300}
