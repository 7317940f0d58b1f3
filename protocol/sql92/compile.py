"""The compiler of SQL92 expressions: from text to closure, each text once."""

from collections.abc import Callable
from typing import TypeAlias, cast

from protocol.sql92.errors import TOO_DEEP, SqlError
from protocol.sql92.nodes import Properties

Filter: TypeAlias = Callable[[Properties], bool | None]
"""True is a match; None is unknown. Raises EvaluationError."""
EXPRESSION_CHARS_MAX = 8192
"""Maximum expression. Compiling takes 2 µs a character on the loop; 4.9.7 has no limit."""

CACHED_EXPRESSIONS = 1024
CACHED_CHARS = 1 << 19
"""Maximum characters of cached texts; closures take up to 0.4 KiB a character, so 200 MiB."""

_cache: dict[str, Filter | SqlError] = {}
"""Cache, oldest first; each operation on it is atomic for other threads."""


def compile_filter(expression: str) -> Filter:
    """Return the closure of an expression, cached by its text. Raises SqlError."""
    result = _cache.get(expression)
    if result is None:
        if len(expression) > EXPRESSION_CHARS_MAX:
            raise SqlError(
                f"the expression has {len(expression)} characters,"
                f" {EXPRESSION_CHARS_MAX} are allowed"
            )
        result = _compiled(expression)
        _keep(expression, result)
    if isinstance(result, SqlError):
        raise result
    return result


def is_compiled(expression: str) -> bool:
    return expression in _cache


def _keep(expression: str, result: Filter | SqlError) -> None:
    texts = list(_cache)
    chars = sum(map(len, texts)) + len(expression)
    count = len(texts) + 1
    for oldest in texts:
        if count <= CACHED_EXPRESSIONS and chars <= CACHED_CHARS:
            break
        _cache.pop(oldest, None)
        count, chars = count - 1, chars - len(oldest)
    _cache[expression] = result


def _compiled(expression: str) -> Filter | SqlError:
    from protocol.sql92.grammar import parse

    try:
        return cast(Filter, parse(expression).evaluate)
    except SqlError as error:
        return error.with_traceback(None)
    except RecursionError:
        return SqlError(TOO_DEEP)
