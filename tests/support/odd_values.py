"""Documents of JSON in which one value is another than its readers expect."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

LEFT_OUT = object()
ODD: tuple[Any, ...] = (
    *(None, True, 1, -1, "x", [], {}, [1], [[]], {"a": 1}, 10**30, 1.5, "\ud800"),
    *(float("inf"), float("nan"), LEFT_OUT),
)


def odd_documents(document: Any) -> Iterator[Any]:
    """Yield the value with each odd value in place of each of its own, and of itself."""
    yield from ODD[:-1]
    for place in _places(document):
        for value in ODD:
            changed = deepcopy(document)
            parent = changed
            for name in place[:-1]:
                parent = parent[name]
            if value is LEFT_OUT:
                del parent[place[-1]]
            else:
                parent[place[-1]] = value
            yield changed


def _places(of: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    for name, each in of.items() if isinstance(of, dict) else enumerate(of):
        yield (*path, name)
        if isinstance(each, dict | list):
            yield from _places(each, (*path, name))
