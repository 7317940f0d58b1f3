"""Patterns of metrics: the same names as `re` finds, in time linear in the name."""

import re
from random import Random
from time import process_time

import pytest

from actors.settings.linear_pattern import REPEATS_MAX, LinearPattern

PIECES = ["a", "b", ".", "[ab]", "[^a]", "-", "a*", "b+", ".*", ".?", "[b-c]*", "(a|b.)", "(ab|a|)"]
PIECES += ["|", "(a|.*b)", "a*?", "%"]


def test_any_pattern_matches_like_re() -> None:
    random, tried = Random(30), 0
    for _ in range(400):
        text = "".join(random.choices(PIECES, k=random.randint(1, 6)))
        try:
            pattern = LinearPattern(text)
        except re.error:
            continue
        for _ in range(12):
            name = "".join(random.choices("abc-%", k=random.randint(0, 7)))
            assert pattern.fullmatch(name) == bool(re.fullmatch(text, name)), (text, name)
            tried += 1
    assert tried > 2000


@pytest.mark.parametrize("text", ["Orders.*|Pay.*", "^Orders.*$", "(eu|us)-[a-z]+", ".*Order.*"])
def test_ordinary_patterns_are_accepted(text: str) -> None:
    pattern = LinearPattern(text)
    names = ("Orders", "OrdersNew", "Payments", "eu-a", "us-", "myOrders", "", "Order")
    assert [pattern.fullmatch(name) for name in names] == [
        bool(re.fullmatch(text, name)) for name in names
    ]


@pytest.mark.parametrize("text", [".*" * 8, "a?" * 5, "(ab)*", "(?=a)", "a{2}", "a\\1", "["])
def test_a_pattern_with_superlinear_matching_is_refused(text: str) -> None:
    with pytest.raises(re.error):
        LinearPattern(text)


def test_matching_time_is_linear_in_the_name() -> None:
    """`.*` four times before a letter that never comes: for `re` the fourth power of the length."""
    for text in (".*" * REPEATS_MAX + "!", "(a|a)" * 40 + "b", ".*a" + "[ab]" * 40 + "b"):
        text = text.replace("!", "x")
        pattern, name = LinearPattern(text), "ab" * 5000
        start = process_time()
        assert not pattern.fullmatch(name + "c")
        assert process_time() - start < 1.0
