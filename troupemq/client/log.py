"""The client's log lines: they go to the standard library's logging.

An application that sets up nothing sees warnings on stderr; `troupemq/logs.py` shows them like the
broker's own lines.
"""

from collections.abc import MutableMapping
from logging import DEBUG, ERROR, INFO, WARNING, getLogger
from traceback import format_exc
from typing import Any

_PLAIN = frozenset("-_.:/@%#+,;|[]<>*")


def plain_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """The event, then its fields as `key=value`; a traceback comes on lines of its own."""
    trace = event.pop("exception", None)
    words = [str(event.pop("event", ""))]
    words += [f"{key}={_value(value)}" for key, value in event.items()]
    return "\n".join((" ".join(words), trace)) if trace else " ".join(words)


def _value(value: object) -> str:
    text = str(value)
    plain = text and all(char.isalnum() or char in _PLAIN for char in text)
    return text if plain else repr(text)


class ClientLog:
    """Events with fields, as structlog's loggers take them; it is not imported for them.

    With `exc_info` the traceback of the exception that is being handled comes below.
    """

    def __init__(self, name: str) -> None:
        self._logger = getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        self._write(DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(INFO, event, fields)

    def warning(self, event: str, *, exc_info: bool = False, **fields: object) -> None:
        self._write(WARNING, event, fields, exc_info)

    def error(self, event: str, *, exc_info: bool = False, **fields: object) -> None:
        self._write(ERROR, event, fields, exc_info)

    def _write(
        self, level: int, event: str, fields: dict[str, object], exc_info: bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            trace = {"exception": format_exc().rstrip("\n")} if exc_info else {}
            line = plain_line(self._logger, "", {"event": event, **fields, **trace})
            self._logger.log(level, line)


def client_logger(name: str) -> ClientLog:
    """The logger of a module, filtered by the level of the logger `name`."""
    return ClientLog(name)
