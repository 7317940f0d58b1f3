"""For attempts on the console: what its own tests visit it with."""

from tests.troupemq.console.conftest import cheap_passwords, visit, visit_to

__all__ = ["cheap_passwords", "visit", "visit_to"]
