"""Standard JSON, read and written: by orjson, and with equal results without it.

A broker has orjson. The tasks of a Spark job run where nobody has installed anything for us: there
the standard library has to do, at a tenth of the speed.

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
"""Each number that does not fit, and others: orjson reads them in another way than the library."""
_LONG_MIN, _UNSIGNED_END = -(1 << 63), 1 << 64
_INTEGER_CHARS_MAX = 20
"""Of an unsigned long, or a long with its sign; JSON has no leading zeros."""


def library_loads(data: bytes) -> object:
    """As orjson's: the value of a text in UTF-8. Raises ValueError for what is no JSON."""
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
    """As orjson's: text, whole numbers, None, and lists and objects of them, without blanks.

    Raises TypeError for text that has no UTF-8.
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
