"""Loggers of the servers: those of structlog, which is imported for the first line.

structlog imports asyncio, and rich where it is installed. A broker for tests, whose lines below
WARNING are dropped, starts without them.

RateLimitedLog is for warnings that a flood may cause by the thousand. The first warning of a kind
is logged at once. Warnings that follow within a minute are counted. The first warning after that
minute, or `tell_rest`, logs them as one line. The line has the fields of the last warning as an
example, `times`, and the first few `names`.

Events that an operator wants one by one, such as clients that join, have a limit (`may_tell`).

A kind is a name in the code, perhaps with something that the operator has configured, such as an
account. It is never a peer's text, so there are few kinds.
"""

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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


log = get_logger(__name__)

MINUTE_MS = 60_000
NAMES_MAX = 10
KINDS_MAX = 1000
"""Maximum kinds; beyond it, each event has one shared kind."""
LINES_MAX = 200
"""Maximum lines of one kind in a minute, for events that have a line each."""
TEXT_CHARS_MAX = 512
"""Maximum length of one field: peers' texts may be as long as a header."""


def shown_names(names: Sequence[str]) -> list[str]:
    return [name[:TEXT_CHARS_MAX] for name in names[:NAMES_MAX]]


@dataclass(slots=True)
class _Kind:
    told_ms: float
    times: int = 0
    names: list[str] = field(default_factory=list)
    fields: dict[str, object] = field(default_factory=dict)


class RateLimitedLog:
    """Rate limiter for a system's warnings. Any thread; counts may miss simultaneous ones."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        """`now_ms` is a monotonic clock."""
        self._now_ms = now_ms
        self._kinds: dict[tuple[str, Hashable], _Kind] = {}
        self._lines: dict[str, tuple[float, int]] = {}
        """For each event of `may_tell`: start of its minute, and lines in it."""

    def now_ms(self) -> float:
        return self._now_ms()

    def warn(
        self,
        event: str,
        *,
        of: Hashable = None,
        names: Sequence[str] | None = None,
        **fields: object,
    ) -> None:
        """Warn once, or once for each of `names`, unless that kind was logged in this minute."""
        if names is not None and not names:
            return
        kind = self._kinds.get((event, of))
        if kind is None:
            if len(self._kinds) >= KINDS_MAX:
                of = None
            kind = self._kinds.setdefault((event, of), _Kind(self._now_ms() - MINUTE_MS))
        kind.times += 1 if names is None else len(names)
        kind.names = shown_names([*kind.names, *(names or ())[:NAMES_MAX]])
        kind.fields = {
            name: each[:TEXT_CHARS_MAX] if isinstance(each, str) else each
            for name, each in fields.items()
        }
        self._tell_due(event, kind)

    def may_tell(self, flood: str, **fields: str) -> bool:
        """Return whether one more line may be logged in this minute.

        `flood` is a name in the code. Past LINES_MAX lines it is logged as a warning instead.
        """
        now_ms = self._now_ms()
        since_ms, count = self._lines.get(flood, (now_ms, 0))
        if now_ms - since_ms >= MINUTE_MS:
            since_ms, count = now_ms, 0
        self._lines[flood] = since_ms, count + 1
        if count >= LINES_MAX:
            self.warn(flood, names=None, **fields)
        return count < LINES_MAX

    def tell_rest(self) -> None:
        """Log the counts of minutes that are over, and drop kinds without new warnings."""
        for key, kind in self._kinds.copy().items():
            if kind.times:
                self._tell_due(key[0], kind)
            elif self._now_ms() - kind.told_ms >= MINUTE_MS:
                self._kinds.pop(key, None)

    def _tell_due(self, event: str, kind: _Kind) -> None:
        now_ms = self._now_ms()
        if now_ms - kind.told_ms < MINUTE_MS:
            return
        fields, names, times = kind.fields, kind.names, kind.times
        kind.fields, kind.names, kind.times, kind.told_ms = {}, [], 0, now_ms
        log.warning(event, **fields, **({"names": names} if names else {}), times=times)
