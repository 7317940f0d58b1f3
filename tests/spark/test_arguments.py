"""Arguments of jobs: rejections before Spark starts, and their texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark.arguments import (
    OfMessages,
    check_output,
    check_store,
    check_topics,
    read_arguments,
)
from storage.errors import StoreError


@dataclass(frozen=True, slots=True)
class Asked:
    store: str
    topics: tuple[str, ...] | None = None
    limit: int = 3
    quick: bool = False
    rate: float = 1.0
    since: Any = None


def test_missing_arguments_get_their_defaults() -> None:
    given = {"store": "/s", "topics": ["A", "B"], "rate": 2, "since": [1], "limit": None}
    assert read_arguments(Asked, "job", given) == Asked("/s", ("A", "B"), rate=2, since=[1])


def test_unneeded_arguments_of_a_broker_are_ignored() -> None:
    assert read_arguments(Asked, "job", {"store": "/s", "published_offset": 7}) == Asked("/s")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "job needs the argument store"),
        ({"store": ""}, "job needs the argument store"),
        ({"store": 5}, "job: store = 5 is not a text"),
        ({"store": "/s", "limit": "x"}, "job: limit = 'x' is not a number"),
        ({"store": "/s", "limit": True}, "job: limit = True is not a number"),
        ({"store": "/s", "quick": 1}, "job: quick = 1 is not true or false"),
        ({"store": "/s", "topics": "A"}, "job: topics = 'A' is not a list"),
        ({"store": "/s", "topic": "A"}, "job has no argument topic; did you mean topics"),
        ({"store": "/s", "xyz": "A"}, "job has no argument xyz; it has store, topics"),
    ],
)
def test_an_invalid_argument_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(StoreError, match=f"^{said}"):
        read_arguments(Asked, "job", given)


def test_range_of_times_that_ends_before_its_begin_found_nothing() -> None:
    with pytest.raises(StoreError, match="until 2026-11-19 is before since 2026-11-20T08:00: "):
        OfMessages("/s", since="2026-11-20T08:00", until="2026-11-19")
    with pytest.raises(StoreError, match="invalid until 'now': use a time such as "):
        OfMessages("/s", until="now")
    assert OfMessages("/s", since=5, until=5).until == 5


def test_missing_store_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the path does not exist"):
        check_store(str(tmp_path / "none"))
    with pytest.raises(StoreError, match=r"commitlog is missing"):
        check_store(str(tmp_path))
    (tmp_path / "commitlog").mkdir()
    check_store(str(tmp_path))


def test_a_topic_without_queues_is_refused_with_the_existing_ones(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"topic A not found in .*: it has none"):
        check_topics(str(tmp_path), ["A"])
    (tmp_path / "consumequeue" / "B").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"it has B$"):
        check_topics(str(tmp_path), ["A"])
    check_topics(str(tmp_path), ["B"])
    check_topics(str(tmp_path), None)


def test_an_output_folder_is_created_or_refused(tmp_path: Path) -> None:
    check_output(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write to .*file"):
        check_output(str(tmp_path / "file"))
