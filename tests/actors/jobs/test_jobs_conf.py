"""Strict parsing of conf/jobs.conf, and its sample."""

from pathlib import Path

import pytest

from actors.jobs.jobs_conf import ScheduledJob, load_jobs
from storage.errors import StoreError

SAMPLE = Path(__file__).resolve().parents[3] / "conf" / "jobs.conf"


def load(tmp_path: Path, text: str) -> list[ScheduledJob]:
    path = tmp_path / "jobs.conf"
    path.write_text(text)
    return load_jobs(path, ["archive", "backlog"])


def test_the_sample_has_no_entry_and_its_comments_form_a_valid_one(tmp_path: Path) -> None:
    assert load_jobs(SAMPLE, ["archive"]) == []
    lines = [line for line in SAMPLE.read_text().splitlines() if not line.startswith("# ")]
    (entry,) = load(tmp_path, "\n".join(line.removeprefix("#") for line in lines))
    assert (entry.name, entry.job, entry.deadline_ms, entry.retries) == (
        "nightly-archive",
        "archive",
        6 * 3_600_000,
        0,
    )
    assert entry.arguments == {"topics": ["Orders", "Payments"]}
    assert entry.nice == 10
    assert entry.settings == {"spark.driver.memory": "1g", "spark.master": "local[2]"}
    assert (entry.occasions.expression, entry.occasions.zone.key) == ("30 2 * * *", "UTC")


GOOD = "[a]\njob = archive\ncron = 0 6 * * MON\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[a]\ncron = 0 6 * * *\n", "entry [a]: job is missing: add the line job = …"),
        ("[a]\njob = archive\n", "entry [a]: cron is missing: add the line cron = …"),
        ("[a]\njob = mow\ncron = 0 6 * * *\n", "there is no job mow; there is archive, backlog"),
        (
            "[a]\njob = archive\ncron = 0 25 * * *\n",
            "invalid cron '0 25 * * *': there is no such hour",
        ),
        (GOOD + "timeZone = Mars/Base\n", "unknown timeZone 'Mars/Base': use"),
        (GOOD + "deadline = 5\n", "invalid deadline '5': use a value such as 90s"),
        (GOOD + "memory = lots\n", "invalid memory 'lots': use a value"),
        (GOOD + "memory = 100m\n", "is not enough for Spark"),
        (GOOD + "retries = -1\n", "invalid retries '-1': use a number from 0 to 20"),
        (GOOD + "nice = -5\n", "invalid nice '-5': use a number from 0 to 19"),
        (GOOD + "corn = x\n", "corn is no setting; did you mean cron?"),
        (GOOD + "Zone = x\n", "Zone is no setting; did you mean timeZone?"),
        (GOOD + "xyz = x\n", "xyz is no setting; there is job, cron"),
        ("[a]\njob = arhive\ncron = 0 6 * * *\n", "no job arhive; did you mean archive?"),
        (GOOD + GOOD, "section 'a' already exists"),
        (GOOD + "job = backlog\n", "option 'job' in section 'a' already exists"),
        ("[a/b]\njob = archive\n", "invalid name: use letters"),
        ("job = archive\n", "no section headers"),
    ],
)
def test_a_mistake_is_one_sentence_with_file_and_entry(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(StoreError) as refused:
        load(tmp_path, text)
    assert sentence in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "jobs.conf"))
    assert "\n" not in str(refused.value)


def test_a_missing_schedule_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*jobs\.conf: No such file"):
        load_jobs(tmp_path / "jobs.conf", [])
