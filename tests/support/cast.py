"""Actors for the tests of the actors: a recorder, and what can be told to it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from actors.engine.actor import Actor, BatchEnd, handles
from actors.engine.actor_address import Question
from actors.engine.messages import Message
from actors.engine.system import ActorSystem
from tests.support.actors import Arrivals
from troupemq.testing.simulation import SimulatedSystem


@dataclass(slots=True)
class Say(Message):
    """Record the text."""

    text: Any
    refused: Callable[[str], None] | None = None

    def on_undelivered(self, remark: str) -> None:
        if self.refused is not None:
            self.refused(remark)


@dataclass(slots=True)
class Do:
    """Call a function with the actor, inside of it."""

    action: Callable[[Any], Any]


@dataclass(slots=True)
class Look(Question):
    """Reply with the result of a function of the actor."""

    question: Callable[[Any], Any]
    reply: Callable[[Any], None]


class Boom(Exception):
    """A failure that a test asked for."""


class Hard(BaseException):
    """Not an Exception: Pykka alone would stop every actor."""


def boom(_: Any) -> None:
    raise Boom("as asked")


@dataclass
class Diary:
    """Events of all incarnations of some recorders, in order."""

    events: Arrivals = field(default_factory=Arrivals)

    def __call__(self, event: Any) -> None:
        self.events(event)

    def wait_for(self, system: ActorSystem, *events: Any) -> list[Any]:
        """Everything up to the last of `events`, which must come in this order."""
        seen: list[Any] = []
        for event in events:
            if isinstance(system, SimulatedSystem):
                arrived: list[Any] = []

                def has_come(event: Any = event, arrived: list[Any] = arrived) -> bool:
                    while event not in arrived and self.events.qsize():
                        arrived.append(self.events.get())
                    return event in arrived

                system.run_until(has_come)
                seen += arrived
            else:
                seen += self.events.take_until(event)
        return seen


class Recorder(Actor):
    """Writes what happens to it into a diary."""

    def __init__(self, diary: Diary | None = None) -> None:
        super().__init__()
        self.diary = diary if diary is not None else Diary()
        self.said: list[Any] = []
        self.is_busy = False

    def on_start(self) -> None:
        self.diary(f"{self.name} started")

    def on_stop(self) -> None:
        self.diary(f"{self.name} stopped")

    def on_drain(self) -> None:
        self.diary(f"{self.name} drained")

    def can_stop(self) -> bool:
        return not self.is_busy

    @handles(Say)
    def say(self, message: Say) -> None:
        self.said.append(message.text)

    @handles(Do)
    def do(self, message: Do) -> None:
        message.action(self)

    @handles(Look)
    def look(self, message: Look) -> None:
        message.reply(message.question(self))


class Batcher(Recorder):
    """A recorder that also records where batches end."""

    @handles(BatchEnd)
    def batch_end(self, _: BatchEnd) -> None:
        self.said.append("|")


def look(system: ActorSystem, name: str, question: Callable[[Any], Any]) -> Any:
    """Asks an actor a question that is answered inside of it."""
    return system.ask(system.address(name), lambda reply: Look(question, reply)).result(10)


def said(system: ActorSystem, name: str) -> list[Any]:
    """Return the record of a recorder so far."""
    result: list[Any] = look(system, name, lambda actor: list(actor.said))
    return result
