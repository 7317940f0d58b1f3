"""Log lines of the client, written through the standard library's logging alone.

Without any set-up the application sees warnings on stderr. `troupemq/logs.py` formats them like
the broker's lines.
"""

import sys
from collections.abc import MutableMapping
from logging import DEBUG, ERROR, INFO, WARNING, Logger, getLogger
from traceback import format_exception
from typing import Any

_PLAIN = frozenset("-_.:/@%#+,;|[]<>*")
_CALLERS = 3
"""Frames between `Logger.log` and the function that logs."""


def plain_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """Return the event and its fields as `key=value`; a traceback follows on its own lines."""
    trace = event.pop("exception", None)
    words = [str(event.pop("event", ""))]
    words += [f"{key}={_value(value)}" for key, value in event.items()]
    return "\n".join((" ".join(words), trace)) if trace else " ".join(words)


def _value(value: object) -> str:
    text = str(value)
    plain = text and all(char.isalnum() or char in _PLAIN for char in text)
    return text if plain else repr(text)


class ClientLogger:
    """Logger of events with fields; `exc_info=True` or an exception adds a traceback."""

    __slots__ = ("_logger",)

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: Any) -> None:
        self._log(DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(ERROR, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        error = fields.pop("exc_info", None)
        if error is True:
            error = sys.exception()
        # For handlers and filters of applications and tests: the values behind the line.
        more = {"event": event, "fields": dict(fields), "failure": error}
        if isinstance(error, BaseException):
            fields["exception"] = "".join(format_exception(error)).rstrip("\n")
        line = plain_line(None, "", {"event": event, **fields})
        self._logger.log(level, line, stacklevel=_CALLERS, extra=more)


def client_logger(name: str) -> ClientLogger:
    """Return a module's logger of events with fields, filtered by the level of logger `name`."""
    return ClientLogger(getLogger(name))
