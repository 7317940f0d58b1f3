"""Loggers of the servers: those of structlog, which is imported for the first line.

structlog imports asyncio, and rich where it is installed. A broker for tests, whose lines below
WARNING are dropped, starts without them.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

IsNoise = Callable[[str, str], bool]
_noise: list[IsNoise] = []


class ServerLog:
    """Logger of one module, of events with fields."""

    __slots__ = ("_module",)

    def __init__(self, module: str) -> None:
        self._module = module

    def debug(self, event: str, **fields: Any) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the traceback of the current exception."""
        self._write("exception", event, fields)

    def critical(self, event: str, **fields: Any) -> None:
        self._write("critical", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if _noise and any(each(level, event) for each in _noise) and not _is_configured():
            return
        from structlog import get_logger

        getattr(get_logger(self._module), level)(event, **fields)


def get_logger(module: str) -> ServerLog:
    return ServerLog(module)


@contextmanager
def dropping(is_noise: IsNoise) -> Iterator[None]:
    """Drop lines for whose level and event `is_noise` is true, unless structlog is configured."""
    _noise.append(is_noise)
    try:
        yield
    finally:
        _noise.remove(is_noise)


def _is_configured() -> bool:
    """Return whether this program has configured structlog, which it imports before."""
    structlog = sys.modules.get("structlog")
    return structlog is not None and structlog.is_configured()
