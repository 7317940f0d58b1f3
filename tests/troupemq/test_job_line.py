"""Tests of the progress line of a run."""

from dataclasses import replace

from actors.jobs.messages import JobState
from protocol.bodies_own import JobRun
from troupemq.job_line import job_line

WRITING = JobState("archive-1", "archive", "running", 3, 80, stage="writing")


def test_a_job_line_has_all_known_figures() -> None:
    assert job_line(JobState("archive-1", "archive")) == "waiting"
    assert job_line(replace(WRITING, done=0, tasks=0)) == "running, writing"
    assert job_line(WRITING) == "running, writing: 3 of 80 tasks"
    more = replace(WRITING, rows_done=40_000, rows=900_000, remaining_ms=120_000)
    assert job_line(more) == (
        "running, writing: 3 of 80 tasks, 40,000 of 900,000 messages, about 2.0 min left"
    )
    assert job_line(replace(more, state="finished")) == "finished"


def test_a_job_line_of_a_remote_run_is_equal() -> None:
    run = JobRun("archive-1", "archive", "running", done=1, tasks=2, stage="counting", rows=5)
    assert job_line(run) == "running, counting: 1 of 2 tasks, 0 of 5 messages"
