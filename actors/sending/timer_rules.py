"""Rules of timers: which messages are timers, when they are due, and where they wait.

A timer waits as a delayed message, in the shortest delay level that lasts until it is due. If none
does, it waits in the longest level, and is stored again when that is over (actors/delays/). So
4.9.7 delivers each timer, late or early by at most a level's delay, and no file is kept for it.

The properties and their precedence are those of RocketMQ 5.x (HookUtils.java): TIMER_DELAY_SEC,
then TIMER_DELAY_MS, then TIMER_DELIVER_MS. A message with DELAY is no timer and loses these
properties. A message that is due already is delivered at once. 5.x rounds due times down to whole
seconds; this broker never delivers early.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from actors.sending.send_rules import RefusedError
from protocol.codes import ResponseCode
from protocol.java_numbers import NumberFormatError, long_in
from protocol.timers import (
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_NAMES,
    TIMER_OUT_MS,
)
from storage.config import StoreConfig

_ILLEGAL = (
    "timer message illegal, the delay time should not be bigger than the max delay {max_ms}ms; or"
    " if set del msg, the delay time should be bigger than the current time"
)
_NOT_ENABLED = "accurate timer message is not enabled, timerWheelEnable is {is_enabled}"


class TimerRules:
    """Rules of one broker."""

    def __init__(
        self, config: StoreConfig, delays_ms: Sequence[int], now_ms: Callable[[], int]
    ) -> None:
        """`delays_ms` are the delays of the levels, level 1 first.

        A level that lasts as long as files of the log are kept is no place for timers.
        """
        self._config, self._now_ms = config, now_ms
        kept_ms = config.file_reserved_hours * 3_600_000
        by_delay = sorted((delay_ms, level) for level, delay_ms in enumerate(delays_ms, 1))
        by_delay = [each for each in by_delay if each[0] < kept_ms] or by_delay
        self._delays_ms = [delay_ms for delay_ms, _ in by_delay]
        self._levels = [level for _, level in by_delay]

    @staticmethod
    def is_asked(pairs: Mapping[bytes, bytes]) -> bool:
        """Return whether a message without a delay level asks to be a timer."""
        return not TIMER_NAMES.isdisjoint(pairs) and TIMER_OUT_MS not in pairs

    def due_ms(self, pairs: Mapping[bytes, bytes]) -> int:
        """Return the due time of a message that asks to be a timer; 0 if it is due already.

        Raises RefusedError.
        """
        config = self._config
        if not config.timer_wheel_enable or not self._delays_ms:
            text = str(config.timer_wheel_enable).lower()
            raise RefusedError(ResponseCode.SYSTEM_ERROR, _NOT_ENABLED.format(is_enabled=text))
        now_ms, max_ms = self._now_ms(), config.timer_max_delay_sec * 1000
        due_ms = _due_ms(pairs, now_ms)
        if due_ms is None or due_ms - now_ms > max_ms:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, _ILLEGAL.format(max_ms=max_ms))
        return due_ms if due_ms > now_ms else 0

    def due_at_commit_ms(self, pairs: Mapping[bytes, bytes]) -> int:
        """Return the due time of a committed message; 0 if it is due already.

        Its half message was checked. A changed limit must not keep a transaction open.
        """
        now_ms = self._now_ms()
        due_ms = _due_ms(pairs, now_ms) if self._delays_ms else None
        return due_ms if due_ms is not None and due_ms > now_ms else 0

    def due_in_ms(self, delay_ms: int) -> int:
        """Return the due time after a delay, which is cut to the limit; 0 without a delay."""
        config = self._config
        if delay_ms <= 0 or not config.timer_wheel_enable or not self._delays_ms:
            return 0
        return self._now_ms() + min(delay_ms, config.timer_max_delay_sec * 1000)

    def covers(self, delay_ms: int) -> bool:
        """Return whether a delay is within the limit, so that it is not cut."""
        return delay_ms <= self._config.timer_max_delay_sec * 1000

    def level(self, due_ms: int) -> tuple[int, int]:
        """Return the level in which a timer waits now, and that level's delay, ms."""
        at = bisect_left(self._delays_ms, due_ms - self._now_ms())
        at = min(at, len(self._delays_ms) - 1)
        return self._levels[at], self._delays_ms[at]


def _due_ms(pairs: Mapping[bytes, bytes], now_ms: int) -> int | None:
    """Return the due time that the properties name; None for an impossible one."""
    try:
        if TIMER_DELAY_SEC in pairs:
            return now_ms + long_in(pairs[TIMER_DELAY_SEC]) * 1000
        if TIMER_DELAY_MS in pairs:
            return now_ms + long_in(pairs[TIMER_DELAY_MS])
        return long_in(pairs[TIMER_DELIVER_MS])
    except (NumberFormatError, KeyError):
        return None
