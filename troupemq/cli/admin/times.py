"""Numbers and times on the command line, limited to the protocol's fields.

A server reads a number beyond its field as 0, which would reset a group to its first message.
"""

from datetime import datetime
from typing import Any

import click

from protocol.java_numbers import NumberFormatError, parse_long
from troupemq.cli.options import YEAR_S, FiniteRange
from troupemq.client.admin.base import INT_MAX
from troupemq.client.admin.offsets import NEWEST
from troupemq.client.arguments import looks_like_seconds

LONG_MAX = (1 << 63) - 1
TIME_FORMAT = "%Y-%m-%d#%H:%M:%S:%f"


class WholeNumber(click.IntRange):
    """Range of integers; accepts exactly the texts that a server parses to the same number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            try:
                value = parse_long(value)
            except NumberFormatError as error:
                self.fail(f"{error.text!r} is not a valid integer.", param, ctx)
        return super().convert(value, param, ctx)


COUNT = WholeNumber(1, INT_MAX)
NUMBER = WholeNumber(0, INT_MAX)
OFFSET = WholeNumber(0, LONG_MAX)


def parse_time(text: str) -> int:
    """Return a time in ms since 1970, NEWEST for `now`.

    Accepts ms since 1970, ISO 8601, and mqadmin's 2026-01-31#12:00:00:000, in local time. Raises
    click.BadParameter for other texts and for times before 1970.
    """
    text = text.strip()
    if text == "now":
        return NEWEST
    try:
        if text.lstrip("-").isdecimal():
            time_ms = parse_long(text)
            if looks_like_seconds(time_ms):
                raise click.BadParameter(f"{text} looks like seconds: use ms, {text}000")
        else:
            time_ms = int(_moment(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        time_ms = LONG_MAX + 1
    if not NEWEST <= time_ms <= LONG_MAX:
        raise click.BadParameter(
            f"invalid time {text!r}: use now, ms since 1970, or a time such as 2026-01-31T12:00:00"
        )
    return time_ms


def _moment(text: str) -> datetime:
    if "#" in text:
        return datetime.strptime(text, TIME_FORMAT)
    return datetime.fromisoformat(text)


class _Time(click.ParamType[int]):
    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_time(str(value))
        except click.BadParameter as error:
            self.fail(error.message, param, ctx)


TIME = _Time()
SECONDS = FiniteRange(0, YEAR_S)
