"""Work in parts, one after another or in tasks of a session, and its progress."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from spark.parts import run_parts
from spark.progress import PROGRESS, HowFar


def doubled(part: int) -> int:
    return 2 * part


def test_without_spark_each_finished_part_is_progress() -> None:
    seen = []
    for result in run_parts(None, doubled, [3, 5], "doubling", lambda part: part * 10):
        seen.append((result, PROGRESS.now().done, PROGRESS.now().rows_done))
    assert seen == [(6, 0, 0), (10, 1, 30)]
    assert PROGRESS.now() == HowFar("doubling", 2, 2, 80, 80)


class Accumulator:
    value = 0

    def add(self, count: int) -> None:
        Accumulator.value += count


class FakeSpark:
    """A session that runs unpickled tasks in this process."""

    def __init__(self) -> None:
        self.sparkContext = self
        Accumulator.value = 0
        self.seen: list[HowFar] = []

    def accumulator(self, value: int) -> Accumulator:
        return Accumulator()

    def parallelize(self, pairs: Sequence[Any], count: int) -> "FakeSpark":
        self.pairs = pairs
        return self

    def map(self, task: Callable[[Any], Any]) -> "FakeSpark":
        self.task = pickle.dumps(task)
        return self

    def collect(self) -> list[Any]:
        results = []
        for number, pair in enumerate(self.pairs, 1):
            results.append(pickle.loads(self.task)(pair))
            self.seen.append(PROGRESS.now(number, len(self.pairs)))
        return results


def test_tasks_count_the_messages_of_their_parts() -> None:
    spark = FakeSpark()
    session: Any = spark
    assert list(run_parts(session, doubled, [3, 5], "doubling", lambda part: part * 10)) == [6, 10]
    assert spark.seen == [HowFar("doubling", 1, 2, 30, 80), HowFar("doubling", 2, 2, 80, 80)]
    assert list(run_parts(session, doubled, [])) == []
