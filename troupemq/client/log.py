"""Log lines of the client, written through the standard library's logging.

Without any set-up the application sees warnings on stderr. `troupemq/logs.py` formats them like
the broker's lines.
"""

from collections.abc import MutableMapping
from logging import getLogger
from typing import Any

from structlog import wrap_logger
from structlog.processors import format_exc_info
from structlog.stdlib import BoundLogger, filter_by_level

_PLAIN = frozenset("-_.:/@%#+,;|[]<>*")


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


def client_logger(name: str) -> BoundLogger:
    """Return a module's logger of events with fields, filtered by the level of logger `name`."""
    logger: BoundLogger = wrap_logger(
        getLogger(name),
        processors=[filter_by_level, format_exc_info, plain_line],
        wrapper_class=BoundLogger,
    )
    return logger
