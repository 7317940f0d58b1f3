"""Tests of the table in actors/__init__.py, and of rules for all actors."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

from actors.engine.actor import Actor
from actors.engine.messages import Message
from actors.naming.messages import Began

ACTORS = Path(__file__).parents[2] / "actors"
BASES = {
    "BatchedTable",
    "KvServer",
    "PersistedTable",
    "QueueWorker",
    "Responder",
    "Settings",
    "TickedTable",
}
"""No actors, but what some are made of."""


def heirs(kind: type[Actor]) -> Iterator[type[Actor]]:
    for heir in kind.__subclasses__():
        if heir.__module__.startswith("actors."):
            yield heir
        yield from heirs(heir)


@pytest.fixture
def cast() -> set[type[Actor]]:
    for module in walk_packages([str(ACTORS)], "actors."):
        import_module(module.name)
    return set(heirs(Actor))


def test_the_cast_lists_every_actor_with_place_and_file(cast: set[type[Actor]]) -> None:
    table = (ACTORS / "__init__.py").read_text(encoding="utf-8")
    told = set(re.findall(r"^    (\w+) +\S.* (loop|thread) +([\w/]+\.py)$", table, re.MULTILINE))
    there = {
        (kind.__name__, kind.where, f"{kind.__module__.partition('.')[2].replace('.', '/')}.py")
        for kind in cast
        if kind.__name__ not in BASES
    }
    assert told == there


def learns_of_its_end(kind: type) -> bool:
    return issubclass(kind, Message) and kind.on_undelivered is not Message.on_undelivered


def test_every_message_with_a_request_answers_it_on_undelivered(cast: set[type[Actor]]) -> None:
    """A message that is left in the mail of an actor that died is refused."""
    carriers = {
        kind
        for actor in cast
        for kind in actor.handlers
        if is_dataclass(kind)
        and any(re.search(r"\bRequest\b", str(each.type)) for each in fields(kind))
    }
    assert len(carriers) > 10
    behind = {Began}  # an Ended follows, with the same request
    assert [kind for kind in carriers - behind if not learns_of_its_end(kind)] == []
