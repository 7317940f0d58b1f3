"""Filters of Spark that shorten a read."""

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from spark.source.row_filter import Pushed, narrow


@pytest.mark.parametrize(
    ("pushed", "is_exact", "left"),
    [
        (EqualTo(("topic",), "paid"), True, Pushed(topics={"paid"})),
        (In(("topic",), ("paid", "x")), True, Pushed(topics={"paid", "x"})),
        (EqualTo(("queueId",), 1), True, Pushed(queue_ids={1})),
        (EqualTo(("queueOffset",), 7), True, Pushed(first=7, end=8)),
        (GreaterThan(("queueOffset",), 7), True, Pushed(first=8)),
        (GreaterThanOrEqual(("queueOffset",), 7), True, Pushed(first=7)),
        (LessThan(("queueOffset",), 7), True, Pushed(end=7)),
        (LessThanOrEqual(("queueOffset",), 7), True, Pushed(end=8)),
        (In(("queueOffset",), (3, 7)), False, Pushed(first=3, end=8)),
        (EqualTo(("tags",), "a"), False, Pushed(tags=frozenset("a"))),
        (In(("tags",), ("a", "b")), False, Pushed(tags=frozenset("ab"))),
        (EqualTo(("topic",), None), False, Pushed()),
        (In(("topic",), ("paid", None)), False, Pushed()),
        (EqualTo(("keys",), "k"), False, Pushed()),
        (IsNotNull(("topic",)), False, Pushed()),
        (StringStartsWith(("topic",), "p"), False, Pushed()),
        (LessThan(("topic",), "p"), False, Pushed()),
    ],
)
def test_a_filter_is_applied_exactly_or_left_to_spark(
    pushed: Filter, is_exact: bool, left: Pushed
) -> None:
    assert narrow(Pushed(), pushed) == (left, is_exact)
