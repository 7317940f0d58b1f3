"""Values are dataclasses: equality, text and hash as those that `dataclass` makes."""

from dataclasses import dataclass, field, replace

import pytest

from protocol import json_body
from protocol.json_body import Value, value


@value
class Made(Value):
    name: str
    counts: list[int] = field(default_factory=list)


@value
class Longer(Made):
    flag: bool = False


@dataclass(slots=True)
class Usual:
    name: str
    counts: list[int] = field(default_factory=list)


def test_equality_needs_one_class_and_equal_fields() -> None:
    assert Made("a", [1]) == Made("a", [1])
    assert Made("a", [1]) != Made("a", [2])
    assert Longer("a") != Made("a") and Made("a") != Usual("a")
    assert Longer("a", flag=True) != Longer("a")


def test_the_text_is_that_of_a_dataclass() -> None:
    assert repr(Made("a", [1])) == repr(Usual("a", [1])).replace("Usual", "Made")
    assert repr(Longer("a")) == "Longer(name='a', counts=[], flag=False)"


def test_values_have_slots_defaults_and_copies_but_no_hash() -> None:
    made = Made("a")
    assert replace(made, name="b") == Made("b", [])
    assert Made("a").counts is not made.counts
    with pytest.raises(AttributeError):
        made.other = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)


def test_a_comparison_does_not_ask_for_the_fields_of_a_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dicts of all fields took 7 µs, and a heartbeat compares 10,000 subscriptions."""
    assert Made("a") != Made("b")
    asked: list[object] = []
    monkeypatch.setattr(json_body, "fields", asked.append)
    assert Made("a") == Made("a") and Made("a") != Made("b") and not asked


@value
class Empty(Value):
    pass


def test_values_without_fields_are_equal() -> None:
    assert Empty() == Empty()
