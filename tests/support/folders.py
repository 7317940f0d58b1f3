"""A temporary folder for each test that asks for one, which goes with a test that passed.

pytest's own `tmp_path` looks through the folders of all tests before, and leaves a link behind: of
three thousand tests that is 3 ms of each, and most of a second by the clock on a slow disk.
"""

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from shutil import rmtree

import pytest

NAME_CHARS_MAX = 30
"""Maximum characters of the test's name: socket paths have at most 107 bytes."""

_numbers = count()
_has_failed = pytest.StashKey[bool]()


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An empty folder below the one of this run."""
    item: pytest.Item = request.node
    name = re.sub(r"\W", "_", item.name)[:NAME_CHARS_MAX]
    path = tmp_path_factory.getbasetemp() / f"{name}{next(_numbers)}"
    path.mkdir(mode=0o700)
    yield path
    if not item.stash.get(_has_failed, False):
        rmtree(path, ignore_errors=True)


def keep(item: pytest.Item) -> None:
    """Mark a failed test, so that its folder is kept."""
    item.stash[_has_failed] = True
