"""Actor systems as fixtures for the tests of this folder."""

from tests.support.actors import (
    any_system,
    no_actor_left_behind,
    real_system,
    simulated_system,
)

__all__ = ["any_system", "no_actor_left_behind", "real_system", "simulated_system"]
