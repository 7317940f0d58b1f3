"""Warnings of which a flood may make thousands: one line a kind and minute, with their number.

The first of a kind is told at once. What follows within a minute is counted, and told as one line
by the first one after that minute, or by `tell_rest`, whichever comes sooner: with the fields of
the last one as an example, `times`, and the first few `names`, if they have any.

What an operator wants each of, such as clients that join, has a ceiling (`may_tell`).

A kind is a name in the code, and perhaps something that an operator has set up, such as an account;
never a text of who is warned of. So there are few of them.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from structlog import get_logger

log = get_logger(__name__)

MINUTE_MS = 60_000
NAMES_MAX = 10
"""Of one line."""
KINDS_MAX = 1000
"""Past them all of one event are one kind."""
LINES_MAX = 200
"""Of one kind in a minute where each has a line of its own."""
TEXT_CHARS_MAX = 512
"""Of one field: strangers' texts may be as long as a header."""


def shown_names(names: Sequence[str]) -> list[str]:
    """The first few of them, no longer than a line can bear."""
    return [name[:TEXT_CHARS_MAX] for name in names[:NAMES_MAX]]


@dataclass(slots=True)
class _Kind:
    told_ms: float
    times: int = 0
    """Since the last line."""
    names: list[str] = field(default_factory=list)
    fields: dict[str, object] = field(default_factory=dict)


class RateLimitedLog:
    """Those of a system. Any thread: a count may be too low by those of the same moment."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        """`now_ms` is a monotonic clock."""
        self._now_ms = now_ms
        self._kinds: dict[tuple[str, Hashable], _Kind] = {}
        self._lines: dict[str, tuple[float, int]] = {}
        """Of what `may_tell`: since when, how many."""

    def now_ms(self) -> float:
        """Return the monotonic clock that lines are counted by."""
        return self._now_ms()

    def warn(
        self,
        event: str,
        *,
        of: Hashable = None,
        names: Sequence[str] | None = None,
        **fields: object,
    ) -> None:
        """Warns of one, or of one for each of `names`, if that kind was not told in this minute."""
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
        """Whether there is room for one more line in this minute; past LINES_MAX `flood` is warned
        of in its place. `flood` is a name in the code."""
        now_ms = self._now_ms()
        since_ms, count = self._lines.get(flood, (now_ms, 0))
        if now_ms - since_ms >= MINUTE_MS:
            since_ms, count = now_ms, 0
        self._lines[flood] = since_ms, count + 1
        if count >= LINES_MAX:
            self.warn(flood, names=None, **fields)
        return count < LINES_MAX

    def tell_rest(self) -> None:
        """Tells what was counted in minutes that are over, and forgets what is quiet."""
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
