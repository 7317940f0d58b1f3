"""Standard JSON, read and written: by orjson, and with equal results without it.

A broker has orjson. Tasks of a Spark job have only the standard library, which is ten times slower.

What is no standard JSON raises ValueError, so that the reader of the dialect (fastjson_reader.py)
gets it: NaN and Infinity, lone surrogates, texts that are not UTF-8. Texts of more than some 900
levels orjson reads and the library does not.
"""

from collections.abc import Callable
from json import dumps as _library_dumps
from json import loads as _library_loads
from math import isinf
from re import compile as compile_pattern
from typing import Any

_SURROGATE = compile_pattern("[\\ud800-\\udfff]")
_ESCAPED_HALF = compile_pattern(r"\\u[dD][89a-fA-F]")
_LONG_NUMBER = compile_pattern(r'(?<![\w".])[0-9](?:[0-9]{18}|[0-9.]*[eE][+-]?[0-9]{3})')
"""Numbers that orjson and the library read differently, and some others."""
_LONG_MIN, _UNSIGNED_END = -(1 << 63), 1 << 64
_INTEGER_CHARS_MAX = 20
"""Characters of an unsigned long, or a long with its sign."""


def library_loads(data: bytes) -> object:
    """Return the value of a UTF-8 text, as orjson does. Raises ValueError for invalid JSON."""
    text = data.decode("utf-8")  # UnicodeDecodeError is a ValueError, too
    if text.startswith("\ufeff"):
        raise ValueError("a byte order mark is no JSON")
    try:
        value: object
        if "NaN" in text or "Infinity" in text or _LONG_NUMBER.search(text):
            value = _library_loads(
                text, parse_constant=_refused, parse_float=_float, parse_int=_integer
            )
        else:  # on PyPy half of the time or less
            value = _library_loads(text)
    except RecursionError:
        raise ValueError("too many levels") from None
    if _ESCAPED_HALF.search(text) and _SURROGATE.search(_library_dumps(value, ensure_ascii=False)):
        raise ValueError("half a character")
    return value


def library_dumps(value: object) -> bytes:
    """Return compact JSON of text, whole numbers, None, lists and objects, as orjson does.

    Raises TypeError for text without UTF-8 form.
    """
    try:
        return _library_dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError as error:
        raise TypeError(str(error)) from None


def _refused(word: str) -> object:
    raise ValueError(f"{word} is no JSON")


def _float(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise ValueError(f"{text} is too large")
    return value


def _integer(text: str) -> int | float:
    if len(text) > _INTEGER_CHARS_MAX:
        return _float(text)
    value = int(text)
    return value if _LONG_MIN <= value < _UNSIGNED_END else _float(text)


loads: Callable[[bytes], Any]
dumps: Callable[[object], bytes]
try:
    from orjson import dumps, loads
except ImportError:
    loads, dumps = library_loads, library_dumps
