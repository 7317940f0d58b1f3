"""The folders of several masters' stores: those of the settings, and the others' beside them.

    store              of the first: as of a broker that is alone
    store-masters/
    ├── plan.json      how they run; locked while they do
    ├── 1/             the store of the second
    └── 2/             the store of the third
    commitlog          storePathCommitLog of the first, where that is set
    commitlog-masters/
    ├── 1/             of the second
    └── 2/             of the third

A folder says by its number whose it is, so that it stays with its broker when more are added.
"""

import os

from storage.config import StoreConfig
from storage.errors import StoreError

PLAN_FILE = "plan.json"


def beside(path: str) -> str:
    """The folder that holds what the other masters have in place of `path`."""
    return f"{path.rstrip('/')}-masters"


def folder_of(path: str, number: int) -> str:
    """What the master with this number, from 0, has in place of `path`."""
    return path if number == 0 else f"{beside(path)}/{number}"


def masters_with_stores(store: StoreConfig) -> int:
    """How many masters it takes to serve what is on the disk; `store` is the first one's."""
    numbers = [0]
    for path in (store.root, store.commit_log_dir):
        try:
            names = os.listdir(beside(path))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # what is wrong with the store itself, its start tells
        numbers += [int(name) for name in names if _is_used(f"{beside(path)}/{name}", name)]
    return max(numbers) + 1


def _is_used(path: str, name: str) -> bool:
    return name.isdecimal() and os.path.isdir(path) and bool(os.listdir(path))


def check_none_is_left_out(store: StoreConfig, masters: int) -> None:
    """Raises StoreError where nobody would serve the messages of some of the stores."""
    count = masters_with_stores(store)
    if count > masters:
        raise StoreError(
            f"there are stores of {count} masters ({store.root} and those in"
            f" {beside(store.root)}), and {masters} would leave messages unserved:"
            f" start with --masters {count}; to have fewer, first drain the last ones"
            " (wipeWritePerm, until their groups have no lag), stop, and move their folders away."
        )
