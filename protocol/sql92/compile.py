"""The compiler of SQL92 expressions: from text to closure, each text once."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias, cast

from protocol.sql92.errors import TOO_DEEP, SqlError
from protocol.sql92.nodes import Properties

Filter: TypeAlias = Callable[[Properties], bool | None]
"""True is a match; None is unknown. Raises EvaluationError."""
EXPRESSION_CHARS_MAX = 8192
"""Compiling costs some 4 µs a character, and whoever serves waits for it; 4.9.7 has no limit."""

_CACHED_EXPRESSIONS = 1024


def compile_filter(expression: str) -> Filter:
    """The closure of an expression; the same for the same text. Raises SqlError."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise SqlError(
            f"the expression has {len(expression)} characters, {EXPRESSION_CHARS_MAX} are allowed"
        )
    result = _compiled(expression)
    if isinstance(result, SqlError):
        raise result
    return result


@lru_cache(maxsize=_CACHED_EXPRESSIONS)
def _compiled(expression: str) -> Filter | SqlError:
    from protocol.sql92.grammar import parse

    try:
        return cast(Filter, parse(expression).evaluate)
    except SqlError as error:
        return error.with_traceback(None)
    except RecursionError:
        return SqlError(TOO_DEEP)
