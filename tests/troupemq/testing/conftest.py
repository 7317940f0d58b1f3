"""Fixtures for the tests of the simulation."""

from tests.support.actors import no_actor_left_behind, simulated_system

__all__ = ["no_actor_left_behind", "simulated_system"]
