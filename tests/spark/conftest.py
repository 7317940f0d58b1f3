"""Actor system for the jobs of these tests."""

from tests.support.actors import real_system

__all__ = ["real_system"]
