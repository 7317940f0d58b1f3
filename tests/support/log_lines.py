"""The log lines of a test: kept as they are, and made into text only if it fails.

A simulated broker has 120 of them for its start and stop; writing each out would be a third of what
it costs.
"""

from collections import deque
from collections.abc import MutableMapping
from typing import Any

from structlog import DropEvent, configure, is_configured
from structlog.processors import format_exc_info

from troupemq.client.log import plain_line

LINES_MAX = 10_000
_PLAIN = (str, int, float, bool, bytes, type(None))

_kept: deque[tuple[str, dict[str, Any]]] = deque(maxlen=LINES_MAX)
_events: set[str] = set()


def begin() -> None:
    """Forgets the lines of the test before. Without a set-up of the test's own all are kept."""
    _kept.clear()
    _events.clear()
    if not is_configured():
        configure(processors=[_keep], logger_factory=_no_logger, cache_logger_on_first_use=False)


def text() -> str:
    """The last lines of this test, LINES_MAX at most."""
    return "\n".join(f"{level:8} {plain_line(None, level, dict(event))}" for level, event in _kept)


def events() -> set[str]:
    """The events of this test, also of lines that are not kept any more."""
    return _events


def _no_logger(*_: object) -> None:
    """Make none, as `_keep` passes no line on to it; structlog's own opens a lock for each line."""


def _keep(logger: object, level: str, event: MutableMapping[str, Any]) -> str:
    if event.get("exc_info"):
        event = format_exc_info(logger, level, event)
    # Whatever else would be alive, and in another state, until the test has failed.
    kept = {key: each if type(each) in _PLAIN else str(each) for key, each in event.items()}
    _kept.append((level, kept))
    _events.add(event["event"])
    raise DropEvent
