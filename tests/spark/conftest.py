"""The actor system that jobs run under here."""

from tests.support.actors import real_system

__all__ = ["real_system"]
