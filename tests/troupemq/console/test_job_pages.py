"""The pages of Spark jobs: schedule, runs, the figures of a chart for each job."""

from dataclasses import replace

import pytest

from protocol.bodies_own import JobEntry, JobLog, JobRun, Jobs
from protocol.codes import RequestCode
from tests.troupemq.console.conftest import Visit
from troupemq.client.admin import BrokerPlace
from troupemq.console.asking import PLACES, PageRequest
from troupemq.console.changes import CHANGES
from troupemq.console.changing.message_changes import arguments_of
from troupemq.console.pages.jobs import job
from troupemq.console.parts import as_json
from troupemq.console.snapshot import BrokerSummary, ClusterSnapshot

ADDRESS = "127.0.0.1:1"
RUNS = [
    JobRun("a-1", "archive", "finished", started_ms=1000, ended_ms=3000, rows_done=500),
    JobRun("n-2", "archive", "failed", "nightly", started_ms=9000, ended_ms=9500, sentence="no"),
    JobRun("a-3", "archive", "finished", started_ms=5000, ended_ms=6000, rows_done=900),
    JobRun("a-4", "archive", "running", started_ms=7000),
    JobRun("l-5", "lag", "finished", started_ms=8000, ended_ms=8100, rows_done=7),
]


@pytest.fixture
def with_jobs(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> Visit:
    entry = JobEntry("nightly", "archive", "0 4 * * *", "UTC", 99, arguments={"topics": ["Orders"]})
    place = BrokerPlace("C", "a", 0, ADDRESS)
    now = ClusterSnapshot(
        5, brokers=[BrokerSummary(place)], jobs={ADDRESS: Jobs(["lag"], RUNS, [entry])}
    )
    monkeypatch.setattr(visit.console.watch, "newest", lambda: now)
    return visit


def test_the_jobs_page_shows_schedule_runs_and_charts(with_jobs: Visit) -> None:
    found = with_jobs.json("/jobs")
    assert found["schedule"][0]["arguments"] == {"topics": ["Orders"]}
    assert [row["run"] for row in found["runs"]] == ["l-5", "a-4", "a-3", "n-2", "a-1"]
    page = with_jobs.get("/jobs").text
    for name in ("lag", "archive", "nightly"):
        assert f'id="chart_{name}"' in page
    assert "/api/jobs/history?job=archive" in page


def test_run_that_ended_before_its_start_has_no_duration(with_jobs: Visit) -> None:
    run = JobRun("a-9", "archive", "cancelled", ended_ms=1_790_000_000_000)
    with_jobs.console.watch.newest().jobs[ADDRESS].runs = [run]
    (row,) = with_jobs.json("/jobs")["runs"]
    assert row["took_ms"] is None


def test_the_page_of_one_job_has_only_its_runs(with_jobs: Visit) -> None:
    found = with_jobs.json("/jobs", job="nightly")
    assert [row["run"] for row in found["runs"]] == ["n-2"]
    page = with_jobs.get("/jobs", job="nightly").text
    assert 'id="chart_nightly"' in page and 'id="chart_lag"' not in page


def test_a_chart_shows_finished_runs_in_order(with_jobs: Visit) -> None:
    rows = with_jobs.json("/jobs/history", job="archive")["history"]
    assert [(row["run"], row["took_s"], row["rows"]) for row in rows] == [
        ("a-1", 2.0, 500),
        ("a-3", 1.0, 900),
        ("n-2", 0.5, 0),
    ]
    assert with_jobs.json("/jobs/history", job="nightly")["history"][0]["state"] == "failed"
    assert with_jobs.json("/jobs/history", job="unknown")["history"] == []


def test_a_job_is_run_with_arguments_as_by_the_command_line(with_jobs: Visit) -> None:
    given = {"broker": ADDRESS, "job": "lag", "arguments": 'topics=["Orders"]\ndays=3\n'}
    line = "job run lag -b 127.0.0.1:1 --no-wait -a"
    assert line in with_jobs.preview("job-run", **given).text
    assert arguments_of(given["arguments"]) == {"topics": ["Orders"], "days": 3}
    with pytest.raises(ValueError, match="is not of the form name=value"):
        arguments_of("nonsense")
    assert (
        "is not of the form name=value"
        in with_jobs.change("job-run", **{**given, "arguments": "x"}).text
    )
    assert CHANGES["job-run"].role == "operator"


@pytest.mark.parametrize("name", ["store", "commit_log", "output", "archive"])
def test_users_cannot_name_files_of_the_brokers_machine(with_jobs: Visit, name: str) -> None:
    """Regression: beside a broker, the console passed paths of users as its operator's."""
    given = {"broker": ADDRESS, "job": "lag", "arguments": f"days=3\n {name} = /etc/cron.d\n"}
    sentence = f"{name} is allowed in the schedule or on the broker"
    assert sentence in with_jobs.preview("job-run", **given).text
    assert sentence in with_jobs.change("job-run", **given).text


@pytest.mark.parametrize(
    ("role", "hides", "sees"),
    [("viewer", True, False), ("viewer", False, True), ("operator", True, True)],
)
def test_reports_and_logs_are_hidden_like_bodies(
    with_jobs: Visit, role: str, hides: bool, sees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports show dead letters, and logs of Spark show rows."""
    object.__setattr__(with_jobs.console.settings, "hide_bodies", hides)
    name, _ = "visitor", with_jobs.console.accounts.new_password("visitor", role)
    viewer = with_jobs.console.accounts.viewer_of(name)
    assert viewer is not None
    run = JobRun("d-6", "deadletters", "failed", report={"text": "secret"}, sentence="secret")
    asked: list[int] = []

    def read(kind: type, address: str, code: int, *more: object) -> object:
        asked.append(code)
        return Jobs([], [run]) if kind is Jobs else JobLog(["secret"])

    monkeypatch.setattr(with_jobs.console.cluster.session, "read", read)
    now = replace(with_jobs.console.watch.newest(), jobs={ADDRESS: Jobs([], [run])})
    monkeypatch.setattr(with_jobs.console.watch, "newest", lambda: now)
    for each in ("/", "/jobs", "/alerts"):
        made = PLACES[each].make(PageRequest(with_jobs.console, viewer, {}))
        assert ("secret" in str(as_json(made))) == sees, each
    page = job(PageRequest(with_jobs.console, viewer, {"broker": ADDRESS, "run": "d-6"}))
    assert ("secret" in str(as_json(page))) == sees
    assert (RequestCode.GET_JOB_LOG in asked) == sees
