"""Progress of a job: by parts, by messages read, by the share of tasks."""

from spark.progress import HowFar, JobProgress


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_finished_parts_add_their_messages() -> None:
    clock = Clock()
    progress = JobProgress(clock)
    assert progress.now() == HowFar()
    progress.begin("counting", rows=1000, tasks=4)
    assert progress.now() == HowFar("counting", 0, 4, 0, 1000)
    clock.s += 30
    progress.add(100)
    assert progress.now() == HowFar("counting", 1, 4, 100, 1000, 270_000)
    clock.s += 10
    progress.add(700)
    assert progress.now() == HowFar("counting", 2, 4, 800, 1000, 10_000)


def test_spark_tasks_count_read_messages_or_their_share() -> None:
    progress = JobProgress(Clock())
    progress.begin("comparing", rows=1000, counted=lambda: 130)
    assert progress.now(1, 8) == HowFar("comparing", 1, 8, 130, 1000)
    progress.begin("writing", rows=1000)
    assert progress.now(3, 8) == HowFar("writing", 3, 8, 375, 1000)
    assert progress.now() == HowFar("writing", 3, 8, 375, 1000), "between two stages of Spark's"


def test_remaining_time_is_estimated_only_with_enough_progress() -> None:
    clock = Clock()
    progress = JobProgress(clock)
    progress.begin("writing", rows=1000)
    clock.s += 1.9
    assert progress.now(5, 10).remaining_ms is None, "too early"
    clock.s += 2.1
    assert progress.now(5, 10).remaining_ms == 4000
    assert progress.now(1, 100).remaining_ms is None, "too little"
    assert progress.now(10, 10).remaining_ms == 0
    progress.begin("comparing")
    clock.s += 60
    assert progress.now().remaining_ms is None, "the total is unknown"
    assert progress.now(1, 4).remaining_ms == 180_000, "by tasks, where messages are not known"
