"""Set-up of log lines, on stderr or in rotated files, as text or JSON.

2026-01-31T12:00:00.000Z info    queue taken queue=Orders@broker-a:0 offset=17
{"event": "queue taken", "queue": "Orders@broker-a:0", "offset": 17, "level": "info", …}
"""

import logging
import sys
from collections.abc import MutableMapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from structlog import configure, reset_defaults
from structlog.processors import JSONRenderer, TimeStamper, format_exc_info
from structlog.stdlib import (
    BoundLogger,
    LoggerFactory,
    ProcessorFormatter,
    add_log_level,
    filter_by_level,
)
from structlog.typing import Processor

from storage.errors import StoreError, reason_of
from troupemq.client.log import plain_line
from troupemq.text import escaped_lines

FILE_BYTES_MAX = 10 << 20
FILES_KEPT = 5
_handlers: list[logging.Handler] = []
"""Handlers that `set_up_logs` added to the root logger; at most one."""

_GOES_ON = "\n  "
"""Indent after line breaks, so that no part of an event, such as a traceback, looks like a line."""
_TIME = TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%fZ", utc=True)


class _LogFile(RotatingFileHandler):
    """File of log lines that drops lines silently when the disk is full.

    The broker itself reports the full disk; a traceback for each line would not help.
    """

    def doRollover(self) -> None:
        """Rename the file, or go on in it and try again later if the folder refuses that."""
        try:
            super().doRollover()
            self.maxBytes = FILE_BYTES_MAX
        except OSError:
            self.maxBytes += FILE_BYTES_MAX

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def set_up_logs(
    *, as_json: bool = False, path: Path | None = None, level: int = logging.INFO
) -> None:
    """Send all log lines of this process, including those of libraries, to stderr or to `path`.

    A file is renamed to `path`.1 at 10 MiB; five old files are kept. Raises StoreError if it cannot
    be written.
    """
    handler: logging.Handler
    if path is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handler = _LogFile(
                path, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8"
            )
        except OSError as error:
            sentence = f"Cannot write the log {path}: {reason_of(error)}."
            raise StoreError(sentence) from error
    before: list[Processor] = [add_log_level, _TIME, format_exc_info]
    render: Processor = _for_machines if as_json else _for_people
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=before,
            processors=[ProcessorFormatter.remove_processors_meta, render],
        )
    )
    shut_down_logs()
    root = logging.getLogger()
    _handlers.append(handler)
    root.addHandler(handler)
    root.setLevel(level)
    configure(
        processors=[filter_by_level, *before, ProcessorFormatter.wrap_for_formatter],
        logger_factory=LoggerFactory(),
        wrapper_class=BoundLogger,
    )


def shut_down_logs() -> None:
    """Undo `set_up_logs`, if it was called, and close its file."""
    root = logging.getLogger()
    while _handlers:
        handler = _handlers.pop()
        root.removeHandler(handler)
        handler.close()
        root.setLevel(logging.WARNING)
        reset_defaults()


_JSON = JSONRenderer(ensure_ascii=False)
_RAW_IN_JSON = {
    code: f"\\u{code:04x}"
    for code in (
        *range(0x7F, 0xA0),  # control characters; JSON escapes those below
        *(0x2028, 0x2029),  # line breaks
        *(0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # direction
        *range(0xD800, 0xE000),  # surrogates, which UTF-8 cannot encode
    )
}
"""Characters, with their escapes, that would falsify the display of a line of JSON."""


def _for_machines(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
    return str(_JSON(logger, method, event)).translate(_RAW_IN_JSON)


def _for_people(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    moment, level = event.pop("timestamp"), event.pop("level")
    milliseconds = f"{moment[:-4]}Z"
    line = f"{milliseconds} {level:7} {plain_line(logger, method, event)}"
    return escaped_lines(line).replace("\n", _GOES_ON)
