"""Log lines of the servers in a test's output: warnings only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog


class _WarningsOnly(structlog.PrintLogger):
    """Logger of the servers: their lines of lower levels would fill the output of tests."""

    def msg(self, message: str) -> None:
        """Drop a line."""

    debug = info = msg

    def warning(self, message: str) -> None:
        """Print the line unless it says no more than that the machine is busy."""
        if SLOW_HANDLER not in message:
            super().msg(message)


class _LoggerFactory(structlog.PrintLoggerFactory):
    """Loggers as structlog's own, except those of the servers."""

    def __call__(self, *names: Any) -> structlog.PrintLogger:
        is_ours = any(str(name).partition(".")[0] in _PACKAGES for name in names)
        return _WarningsOnly() if is_ours else super().__call__(*names)


SLOW_HANDLER = "slow handler"
_PACKAGES = {"protocol", "storage", "remoting", "actors", "troupemq"}


@contextmanager
def quiet() -> Iterator[None]:
    """Log warnings of the servers only, unless this program has configured structlog itself."""
    if structlog.is_configured():
        yield
        return
    factory = _LoggerFactory()
    structlog.configure(logger_factory=factory)
    try:
        yield
    finally:
        if structlog.get_config()["logger_factory"] is factory:
            structlog.reset_defaults()
