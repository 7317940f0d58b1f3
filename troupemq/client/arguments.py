"""Checks of arguments, made before a call has any effect."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, wraps
from inspect import signature
from math import ceil
from types import UnionType
from typing import ParamSpec, TypeVar

from troupemq.client.errors import ArgumentIllegal

Checked = TypeVar("Checked")
Called = ParamSpec("Called")
Returned = TypeVar("Returned")

SHOWN_CHARS_MAX = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS_MAX = (1 << 31) - 1
TIME_MS_MAX = (1 << 63) - 1
DELAY_S_MAX = 366 * 86_400
"""Limit of a delay or a hold, in seconds: a year."""
SECONDS_MIN, SECONDS_MAX = 10**8, 10**11
"""Range of times in seconds since 1970, from 1973 to 5138. Read as ms, it ends in early 1973."""


def shown(value: object) -> str:
    """Return the repr of `value` for an error, truncated: it may be a body of megabytes."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"


def check_instance(value: object, wanted: type | UnionType, what: str) -> None:
    """Raise ArgumentIllegal, "<what>, and not <value>", unless `value` has the type `wanted`."""
    if not isinstance(value, wanted):
        raise ArgumentIllegal(f"{what}, and not {shown(value)}")


def check_ranges(settings: object, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raise ArgumentIllegal for the first setting outside its range, and for an invalid flag.

    A flag must be True or False. Times (names that end in _ms) need not be integers.
    """
    for name, (least, most) in ranges.items():
        value = getattr(settings, name)
        if isinstance(value, timedelta):
            raise ArgumentIllegal(f"{name} is in ms: pass {value.total_seconds() * 1000:g}")
        check = check_range if name.endswith("_ms") else check_integer
        check(value, least, most, name)
    for name, value in vars(settings).items():
        if isinstance(getattr(type(settings), name, None), bool):
            check_flag(value, name)


def check_flag(value: object, what: str) -> None:
    """Raise ArgumentIllegal unless `value` is True or False; the text "false" would be true."""
    if not isinstance(value, bool):
        raise ArgumentIllegal(f"{what} is True or False, and not {shown(value)}")


def names_checked(made: type[Checked], settings: type | None = None) -> type[Checked]:
    """Make a class reject unknown argument names with an ArgumentIllegal that suggests one.

    `settings` is the class of its argument `settings`. With it, the error also recognizes a
    setting that was passed directly.
    """
    made.__init__ = _with_names_checked(  # type: ignore[method-assign]
        made.__init__, made.__name__, settings
    )
    return made


def method_names_checked(method: Callable[Called, Returned]) -> Callable[Called, Returned]:
    return _with_names_checked(method, method.__name__, None)


def _with_names_checked(
    plain: Callable[Called, Returned], called: str, settings: type | None
) -> Callable[Called, Returned]:
    @cache
    def known() -> list[str]:
        return list(signature(plain).parameters)[1:]

    @wraps(plain)
    def checked(*args: Called.args, **named: Called.kwargs) -> Returned:
        for name in named:
            if name not in known():
                raise ArgumentIllegal(unknown_name(called, name, known(), settings))
        return plain(*args, **named)

    return checked


def unknown_name(called: str, name: str, known: Sequence[str], settings: type | None = None) -> str:
    """Return the error for an unknown argument, with the known name that it is close to."""
    from difflib import get_close_matches  # only needed for an error

    said = f"{called} has no argument {name!r}"
    of_settings = [] if settings is None else list(signature(settings).parameters)
    if close := get_close_matches(name, known, 1):
        return f"{said}: did you mean {close[0]}?"
    if settings is not None and (close := get_close_matches(name, of_settings, 1)):
        return f"{said}: it is a setting, settings={settings.__name__}({close[0]}=...)"
    return f"{said}: it has {', '.join(known)}"


def check_timeout(timeout_ms: object, least: int = 1) -> None:
    """Raise ArgumentIllegal unless `timeout_ms` is from `least` on; recognize seconds.

    None is accepted, too, but for a wait that may be 0.
    """
    if timeout_ms is None and least > 0:
        return
    if isinstance(timeout_ms, timedelta):
        ms = timeout_ms.total_seconds() * 1000
        raise ArgumentIllegal(f"timeout_ms is a number of milliseconds: pass {ms:g}")
    if isinstance(timeout_ms, float) and 0 < timeout_ms < 1:
        ms = timeout_ms * 1000
        raise ArgumentIllegal(
            f"timeout_ms is {timeout_ms!r} milliseconds: {ms:g} for {timeout_ms!r} s"
        )
    check_range(timeout_ms, least, MS_MAX, "timeout_ms")


def check_time(time_ms: object, what: str) -> None:
    """Raise ArgumentIllegal unless `time_ms` is in ms since 1970; recognize seconds."""
    if isinstance(time_ms, datetime):
        ms = int(time_ms.timestamp() * 1000)
        raise ArgumentIllegal(f"{what} is in ms since 1970, and not a datetime: pass {ms}")
    if isinstance(time_ms, int | float) and looks_like_seconds(time_ms):
        raise ArgumentIllegal(
            f"{what} is in ms since 1970, and {time_ms} looks like seconds:"
            f" pass {int(time_ms * 1000)}"
        )
    check_integer(time_ms, 0, TIME_MS_MAX, what)


def looks_like_seconds(time_ms: float) -> bool:
    """Return whether a time in ms since 1970 was probably meant in seconds."""
    return SECONDS_MIN <= time_ms < SECONDS_MAX


def milliseconds(time: object, what: str) -> int:
    """Return ms since 1970 of a datetime, or of ms since 1970. Raises ArgumentIllegal.

    A part of a ms counts as a whole one: nothing is delivered early.
    """
    if isinstance(time, datetime):
        try:
            time = -((_EPOCH - time.astimezone(UTC)) // timedelta(milliseconds=1))
        except (ValueError, OverflowError, OSError):
            raise ArgumentIllegal(f"{what} is out of range: {time!r}") from None
    check_instance(time, int | float, f"{what} is a datetime, or ms since 1970")
    check_time(time, what)
    assert isinstance(time, int)
    return time


def delay_milliseconds(delay: object, what: str) -> int:
    """Return the ms of a timedelta, or of a number of seconds. Raises ArgumentIllegal."""
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if not isinstance(delay, int | float):
        raise ArgumentIllegal(f"{what} is {delay!r}, and not a number of seconds or a timedelta")
    check_range(delay, 0, DELAY_S_MAX, what)
    assert isinstance(delay, int | float)
    return ceil(round(delay * 1000, 3))


def check_integer(value: object, least: int, most: int, what: str) -> None:
    """Raise ArgumentIllegal, "<what> is <value>, and not an integer", or as `check_range`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentIllegal(f"{what} is {value!r}, and not an integer")
    check_range(value, least, most, what)


def check_range(value: object, least: int, most: int, what: str) -> None:
    """Raise ArgumentIllegal, "<what> is <value>, and not within <least> to <most>"."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ArgumentIllegal(f"{what} is {value!r}, and not within {least} to {most}")
