"""The actor systems that the tests of this folder ask for."""

from tests.support.actors import (
    any_system,
    no_actor_left_behind,
    real_system,
    simulated_system,
)

__all__ = ["any_system", "no_actor_left_behind", "real_system", "simulated_system"]
