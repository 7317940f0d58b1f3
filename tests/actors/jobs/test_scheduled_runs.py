"""The schedule under its actor: restarts, crashes, clock changes, failures and retries."""

import json
from collections.abc import Callable
from datetime import datetime
from errno import ENOSPC
from random import Random
from zoneinfo import ZoneInfo

import pytest

from actors.engine.actor import Actor, AskFigures, handles
from actors.engine.supervisor import ChildSpec
from actors.jobs import spark_jobs
from actors.jobs.jobs_conf import ScheduledJob
from actors.jobs.messages import Cancel, JobChanged, JobFigures, JobOrder, JobState, RunJob
from actors.jobs.scheduled_runs import JobSchedule, KeptRuns
from actors.jobs.spark_job import JobCommand
from actors.jobs.spark_jobs import SparkJobs
from actors.jobs.timetable import Occasions
from actors.network.messages import Request
from actors.tables.config_writer import ConfigWriter
from protocol.bodies_own import JobLog, JobRun, Jobs
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from tests.actors.jobs.occasions import occasions_between
from tests.support.actors import WAIT_S
from tests.support.brokers import running
from tests.support.peers import RecordingPeer, request
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedClock, SimulatedSystem

PATH = "/store/troupemq/jobs.json"
BERLIN, NEW_YORK, UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), ZoneInfo("UTC")
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
DEEP = "[" * 900 + "]" * 900
RUN_MS = 10_000


def ms(text: str, zone: ZoneInfo = UTC) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()) * 1000


def entry(name: str, cron: str, zone: ZoneInfo = UTC, retries: int = 0) -> ScheduledJob:
    return ScheduledJob(name, "archive", Occasions(cron, zone), {"from": name}, retries=retries)


class World:
    """Consecutive brokers on one disk, each with only SparkJobs and ConfigWriter."""

    def __init__(self, now: str, *entries: ScheduledJob) -> None:
        self.entries = entries
        self.disk = FakeDisk()
        self.now_ms = ms(now)
        self.finished: list[tuple[str, int]] = []
        """(entry, occasion) of each run that came to its end."""
        self.fails: Callable[[], bool] = lambda: False
        self.orders: list[JobOrder] = []
        self._seed = 0
        self.start()
        running.append(self)

    def start(self) -> None:
        self._seed += 1
        self.kept = KeptRuns()
        self.system = SimulatedSystem(self._seed, self.disk, self.now_ms)
        writer = self.system.address("config_writer")
        self.jobs = self.system.address("spark_jobs")
        self.system.start(
            ChildSpec("config_writer", lambda _: ConfigWriter()),
            ChildSpec(
                "spark_jobs",
                lambda _: SparkJobs(
                    no_command,
                    "unused",
                    job_names=["archive"],
                    schedule=JobSchedule(self.entries, PATH, writer),
                    kept=self.kept,
                    make_job=lambda *given: ScriptedJob(self, *given),
                ),
            ),
        )
        self.system.drain()

    @property
    def wall_ms(self) -> int:
        return self.system.clock.now_ms()

    def advance(self, span_ms: float) -> None:
        self.system.advance(span_ms)
        self.now_ms = self.wall_ms

    def set_clock(self, now_ms: int) -> None:
        clock = self.system.clock
        assert isinstance(clock, SimulatedClock)
        clock.set_wall(now_ms)

    def stop(self) -> None:
        self.now_ms = self.wall_ms
        assert self.system.stop(WAIT_S)

    def crash(self) -> None:
        self.now_ms = self.wall_ms
        self.system.crash()
        self.disk = self.disk.crashed(self._seed)

    def ended(self, state: JobState) -> JobState:
        """Return the final state of a run."""
        if self.fails():
            return JobState(
                state.run, state.name, "failed", sentence="on purpose", entry=state.entry
            )
        line = self.kept.lines.get(state.entry)
        if line is not None and line.open is not None:
            self.finished.append((state.entry, line.open.due_ms))
        return JobState(state.run, state.name, "finished", entry=state.entry, report={"rows": 7})

    def states(self) -> list[JobState]:
        figures: JobFigures = self.system.ask(self.jobs, AskFigures).result(WAIT_S)
        return [*figures.states]

    def ask(self, code: RequestCode, host: str = "127.0.0.1", **fields: str) -> RemotingCommand:
        peer = RecordingPeer(host)
        self.jobs.tell(Request(request(code, fields), peer))
        self.system.drain()
        (answer,) = peer.received
        return answer


class ScriptedJob(Actor):
    """Stands in for a SparkJob: runs for ten seconds of the simulation's time."""

    def __init__(self, world: World, state: JobState, order: JobOrder, *rest: object) -> None:
        super().__init__()
        self._world = world
        self._state = state
        self._tell_jobs = rest[-1]
        world.orders.append(order)

    def on_start(self) -> None:
        self.say(JobState(self._state.run, self._state.name, "running", entry=self._state.entry))
        self.after(RUN_MS, AskFigures(print))

    @handles(AskFigures)
    def done(self, _: AskFigures) -> None:
        self.say(self._world.ended(self._state))
        self.stop()

    @handles(Cancel)
    def cancel(self, _: Cancel) -> None:
        self.say(JobState(self._state.run, self._state.name, "cancelled", entry=self._state.entry))
        self.stop()

    def say(self, state: JobState) -> None:
        assert callable(self._tell_jobs)
        self._tell_jobs(JobChanged(state))


def no_command(order: JobOrder, work_directory: str) -> JobCommand:
    raise AssertionError("no child is started here")


@pytest.fixture
def rare_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three months are many minutes."""
    monkeypatch.setattr(spark_jobs, "LOOK_MS", 6 * HOUR_MS)


@pytest.mark.heavy
@pytest.mark.usefixtures("rare_looks")
@pytest.mark.parametrize("start", ["2026-02-10T00:00", "2026-09-10T00:00"])
def test_three_months_with_restarts_and_crashes_run_each_occasion_once(start: str) -> None:
    entries = [
        entry("berlin", "30 2 * * *", BERLIN),
        entry("new-york", "15,45 2 * * *", NEW_YORK),
        entry("mondays", "0 6 * * MON"),
    ]
    random, end_ms = Random(11), ms(start) + 92 * DAY_MS
    world = World(start, *entries)
    while world.wall_ms < end_ms:
        world.advance(random.randrange(4 * DAY_MS))
        random.choice([world.stop, world.crash])()
        next_ms = min(each.occasions.after(world.now_ms) for each in entries)
        world.now_ms = random.randrange(world.now_ms, next_ms)
        world.start()
    world.advance(MINUTE_MS)
    for each in entries:
        due = [occasion for name, occasion in world.finished if name == each.name]
        assert due == occasions_between(each.occasions, ms(start), world.wall_ms - RUN_MS)


@pytest.mark.usefixtures("rare_looks")
@pytest.mark.parametrize("seed", range(3))
def test_a_clock_that_jumps_runs_nothing_twice(seed: int) -> None:
    world = World("2026-10-20T00:00", entry("often", "0 */3 * * *", BERLIN))
    random = Random(seed)
    for _ in range(30):
        world.advance(random.randrange(DAY_MS))
        if random.random() < 0.6:
            world.set_clock(world.wall_ms + random.randrange(-2 * DAY_MS, 2 * DAY_MS))
        if random.random() < 0.3:
            random.choice([world.stop, world.crash])()
            world.start()
    world.advance(DAY_MS)
    assert len(world.finished) == len(set(world.finished)) > 50


def test_a_clock_that_was_set_back_before_a_restart_is_remembered() -> None:
    world = World("2026-03-01T00:30", entry("daily", "0 1 * * *"))
    world.set_clock(ms("2026-03-04T00:30"))
    world.advance(HOUR_MS)
    world.set_clock(ms("2026-03-01T00:30"))
    world.advance(10 * MINUTE_MS)
    world.stop()
    world.now_ms = ms("2026-03-02T12:00")
    world.start()
    world.advance(HOUR_MS)
    expected = ["2026-03-03T01:00", "2026-03-04T01:00", "2026-03-02T01:00"]
    assert [due for _, due in world.finished] == [ms(text) for text in expected]


def test_missed_occasions_have_one_run_together() -> None:
    world = World("2026-03-01T00:30", entry("hourly", "0 * * * *"))
    world.advance(HOUR_MS)
    world.stop()
    world.now_ms += 3 * DAY_MS
    world.start()
    world.advance(10 * MINUTE_MS)
    due = [ms("2026-03-01T01:00"), ms("2026-03-04T01:00")]
    assert world.finished == [("hourly", each) for each in due]


def test_a_new_entry_counts_from_its_first_start() -> None:
    world = World("2026-03-01T00:30", entry("daily", "0 1 * * *"))
    world.stop()
    world.now_ms += HOUR_MS
    world.start()
    world.advance(MINUTE_MS)
    assert world.finished == [("daily", ms("2026-03-01T01:00"))]


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_a_run_that_a_stop_interrupts_restarts(how: str) -> None:
    world = World("2026-03-01T00:30", entry("daily", "0 1 * * *"))
    world.advance(30 * MINUTE_MS + 2000)
    assert [state.state for state in world.states()] == ["running"]
    getattr(world, how)()
    assert world.finished == []
    world.start()
    world.advance(HOUR_MS)
    assert world.finished == [("daily", ms("2026-03-01T01:00"))]


def test_a_failed_run_is_retried_with_growing_delays_up_to_a_limit() -> None:
    world = World("2026-03-01T00:59", entry("daily", "0 1 * * *", retries=2))
    world.fails = lambda: True
    world.advance(HOUR_MS)
    begun = [int(state.run.rpartition("-")[2]) for state in world.states()]
    tries = [ms("2026-03-01T01:00")]
    for back_off_ms in (30_000, 60_000):
        tries.append(tries[-1] + RUN_MS + back_off_ms)
    assert begun == tries
    world.fails = lambda: False
    world.advance(DAY_MS)
    assert world.finished == [("daily", ms("2026-03-02T01:00"))]


def test_attempts_are_counted_over_a_restart() -> None:
    world = World("2026-03-01T00:59", entry("daily", "0 1 * * *", retries=1))
    world.fails = lambda: True
    world.advance(MINUTE_MS + RUN_MS + 1000)
    world.stop()
    world.start()
    world.advance(RUN_MS + 1000)
    world.fails = lambda: False
    world.advance(HOUR_MS)
    assert world.finished == []  # both tries were used


def test_an_occasion_during_a_run_waits_for_its_end() -> None:
    world = World("2026-03-01T00:59", entry("often", "* * * * *"))
    world.jobs.tell(RunJob("archive", {}, lambda state: None))
    world.advance(3 * MINUTE_MS + RUN_MS + 1000)
    states = [state.state for state in world.states()]
    assert states == ["finished"] * 4


def test_an_entry_runs_with_its_settings() -> None:
    made = ScheduledJob(
        "x",
        "archive",
        Occasions("0 1 * * *", UTC),
        {"topics": ["a"]},
        {"spark.master": "m"},
        deadline_ms=5,
        nice=3,
    )
    world = World("2026-03-01T00:59", made)
    world.advance(MINUTE_MS)
    assert world.orders == [JobOrder("archive", {"topics": ["a"]}, {"spark.master": "m"}, 5, 3)]


def test_a_full_disk_does_not_stop_the_schedule() -> None:
    world = World("2026-03-01T00:59", entry("daily", "0 1 * * *"))
    world.disk.fail_next("pwrite", OSError(ENOSPC, "no space left"), times=100)
    world.advance(HOUR_MS)
    assert world.finished == [("daily", ms("2026-03-01T01:00"))]


# --- over the network


def test_jobs_runs_and_schedule_are_returned_over_the_network() -> None:
    world = World("2026-03-01T00:59", entry("daily", "0 1 * * *", BERLIN))
    run = JobRun.decode(world.ask(RequestCode.RUN_JOB, name="archive").body)
    assert (run.job, run.state) == ("archive", "waiting")
    world.advance(RUN_MS)
    assert Jobs.decode(world.ask(RequestCode.GET_JOBS).body).runs[0].report == {}
    found = Jobs.decode(world.ask(RequestCode.GET_JOBS, run=run.run).body)
    assert found.jobs == ["archive"]
    assert [(each.run, each.state, each.report) for each in found.runs] == [
        (run.run, "finished", {"rows": 7})
    ]
    (line,) = found.schedule
    assert (line.name, line.cron, line.time_zone) == ("daily", "0 1 * * *", "Europe/Berlin")
    assert line.next_ms == ms("2026-03-02T01:00", BERLIN)
    assert JobLog.decode(world.ask(RequestCode.GET_JOB_LOG, run=run.run).body).lines == []


def test_an_entry_can_be_run_at_once() -> None:
    world = World("2026-03-01T00:59", entry("daily", "0 5 * * *"))
    world.ask(RequestCode.RUN_JOB, name="daily", arguments='{"more": 1}')
    world.advance(RUN_MS)
    assert world.orders[0].arguments == {"from": "daily", "more": 1}


def test_a_run_is_cancelled_over_the_network_once() -> None:
    world = World("2026-03-01T00:59")
    run = JobRun.decode(world.ask(RequestCode.RUN_JOB, name="archive").body).run
    assert world.ask(RequestCode.CANCEL_JOB, run=run).code == ResponseCode.SUCCESS
    world.system.drain()
    again = world.ask(RequestCode.CANCEL_JOB, run=run)
    assert again.remark == f"there is no run {run} that waits or runs"


@pytest.mark.parametrize(
    ("host", "fields", "remark"),
    [
        ("127.0.0.1", {"name": "mow"}, "there is no job mow; there is archive"),
        *(
            ("127.0.0.1", {"name": "archive", "arguments": text}, "arguments is not a JSON object")
            for text in ("[]", "", "{", "{{a:1}:1}", '{"a":' * 5000, f'{{"a":{DEEP}}}')
        ),
        (
            "192.0.2.7",
            {"name": "archive", "arguments": json.dumps({"output": "/etc"})},
            "output is permitted on the broker's machine only: leave it out",
        ),
    ],
)
def test_an_invalid_job_is_refused_with_one_sentence(
    host: str, fields: dict[str, str], remark: str
) -> None:
    world = World("2026-03-01T00:59")
    assert world.ask(RequestCode.RUN_JOB, host, **fields).remark == remark
    assert world.states() == []


def test_local_requests_may_name_paths() -> None:
    world = World("2026-03-01T00:59")
    arguments = json.dumps({"output": "/there"})
    answer = world.ask(RequestCode.RUN_JOB, name="archive", arguments=arguments)
    assert answer.code == ResponseCode.SUCCESS
    assert world.orders[0].arguments == {"output": "/there"}
