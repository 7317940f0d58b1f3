"""Checks of what callers pass, made before anything is done with it."""

from collections.abc import Mapping
from datetime import timedelta

from troupemq.client.errors import ArgumentIllegal

MS_MAX = (1 << 31) - 1


def check_instance(value: object, wanted: type, what: str) -> None:
    """Raises ArgumentIllegal: "<what>, and not <value>"."""
    if not isinstance(value, wanted):
        raise ArgumentIllegal(f"{what}, and not {value!r}")


def check_ranges(settings: object, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raises ArgumentIllegal for the first of these settings that is not within its range."""
    for name, (least, most) in ranges.items():
        check_range(getattr(settings, name), least, most, name)


def check_timeout(timeout_ms: object) -> None:
    """Raise ArgumentIllegal unless it is None, or milliseconds that make sense."""
    if timeout_ms is None:
        return
    if isinstance(timeout_ms, timedelta):
        ms = timeout_ms.total_seconds() * 1000
        raise ArgumentIllegal(f"timeout_ms is a number of milliseconds: pass {ms:g}")
    if isinstance(timeout_ms, float) and 0 < timeout_ms < 1:
        ms = timeout_ms * 1000
        raise ArgumentIllegal(
            f"timeout_ms is {timeout_ms!r} milliseconds: {ms:g} for {timeout_ms!r} s"
        )
    check_range(timeout_ms, 1, MS_MAX, "timeout_ms")


def check_integer(value: object, least: int, most: int, what: str) -> None:
    """Raises ArgumentIllegal: "<what> is an integer, and not <value>", and as `check_range`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentIllegal(f"{what} is an integer, and not {value!r}")
    check_range(value, least, most, what)


def check_range(value: object, least: int, most: int, what: str) -> None:
    """Raises ArgumentIllegal: "<what> is <value>, and not within <least> to <most>"."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ArgumentIllegal(f"{what} is {value!r}, and not within {least} to {most}")
