"""Spark jobs beside a broker: how their processes are started."""

from pathlib import Path

import pytest

from actors.jobs.messages import JobOrder
from troupemq import jobs_beside


def test_jobs_are_told_the_master_over_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_beside, "find_java", lambda _: "/java")
    make = jobs_beside.job_commands(
        tmp_path / "spark.conf", {"spark.master": "yarn", "spark.x": "y"}
    )
    child = make(JobOrder("traffic", {}, {"spark.x": "of its entry"}, 1.0), str(tmp_path))
    assert child.argv[-4:] == ["--set", "spark.master=yarn", "--set", "spark.x=of its entry"]
