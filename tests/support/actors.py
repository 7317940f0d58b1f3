"""Actor systems for tests: on real threads, stopped afterwards; simulated, with the seed printed.

Imported by a `conftest.py`; `TROUPEMQ_SEED` in the environment replays a simulated test.
"""

import os
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from random import SystemRandom
from threading import enumerate as threads_alive
from typing import Any, TypeVar

import pytest
from pykka import ActorRegistry

from actors.engine.actor_address import ActorAddress
from actors.engine.system import ActorSystem
from storage.files.disk import RealDisk
from troupemq.testing.simulation import SimulatedSystem

T = TypeVar("T")

WAIT_S = 10.0
"""Maximum wait of a test for an immediate event, on a busy machine, in seconds."""


class Arrivals(SimpleQueue[Any]):
    """Queue from actors to a test: actors call it, and the test calls `take`."""

    def __call__(self, value: Any) -> None:
        self.put(value)

    def take(self) -> Any:
        """The next arrival; fails the test when none comes."""
        try:
            return self.get(timeout=WAIT_S)
        except Empty:
            raise AssertionError(f"nothing arrived within {WAIT_S} s") from None

    def take_until(self, wanted: object) -> list[Any]:
        """The arrivals up to `wanted`, which is the last of them."""
        taken = [self.take()]
        while taken[-1] != wanted:
            taken.append(self.take())
        return taken

    def all(self) -> list[Any]:
        """Return all that has arrived so far."""
        return [self.get_nowait() for _ in range(self.qsize())]


def new_seed() -> int:
    """The seed of the environment, else a fresh one."""
    seed = os.environ.get("TROUPEMQ_SEED")
    return int(seed) if seed is not None else SystemRandom().randrange(1 << 32)


def addresses(system: ActorSystem) -> list[ActorAddress]:
    """Return the actors with a fixed name, in the order of the requests."""
    return list(system._addresses.values())


@pytest.fixture
def real_system() -> Iterator[ActorSystem]:
    """A system on free threads and the machine's clock and disk."""
    system = ActorSystem.real(disk=RealDisk())
    yield system
    system.stop(WAIT_S)
    assert not system.live, f"still there: {[actor.name for actor in system.live]}"


@pytest.fixture
def simulated_system() -> Iterator[SimulatedSystem]:
    """A simulated system; pytest shows the printed seed when the test fails."""
    seed = new_seed()
    print(f"TROUPEMQ_SEED={seed}")
    system = SimulatedSystem(seed, RealDisk())
    yield system
    if system.live:
        system.stop(WAIT_S)


@pytest.fixture(params=["real", "simulated"])
def any_system(request: pytest.FixtureRequest) -> ActorSystem:
    """Run a test with both systems, for rules of every dispatcher."""
    system: ActorSystem = request.getfixturevalue(f"{request.param}_system")
    return system


@pytest.fixture(autouse=True)
def no_actor_left_behind() -> Iterator[None]:
    """Fails a test after which an actor or a thread that it started is still there."""
    actors_before = set(ActorRegistry.get_all())
    threads_before = set(threads_alive())
    yield
    for thread in set(threads_alive()) - threads_before:
        thread.join(WAIT_S)
        assert not thread.is_alive(), f"{thread.name} is still running"
    left = set(ActorRegistry.get_all()) - actors_before
    assert not left, f"still in the registry: {left}"
