"""Folders of several masters' stores.

    store              master 0, as for a single broker
    store-masters/
    ├── plan.json      the plan; locked by the running supervisor
    ├── 1/             master 1
    └── 2/             master 2
    commitlog          storePathCommitLog of master 0, if set
    commitlog-masters/
    ├── 1/             master 1
    └── 2/             master 2

The number ties a folder to its master, even when more masters are added.
"""

import os

from storage.config import StoreConfig
from storage.errors import StoreError

PLAN_FILE = "plan.json"


def beside(path: str) -> str:
    """Return the folder with the counterparts of `path` of the other masters."""
    return f"{path.rstrip('/')}-masters"


def folder_of(path: str, number: int) -> str:
    """Return the counterpart of `path` of the master with this number, from 0."""
    return path if number == 0 else f"{beside(path)}/{number}"


def masters_with_stores(store: StoreConfig) -> int:
    """Return the number of masters needed to serve all stores on disk; `store` is master 0's."""
    numbers = [0]
    for path in (store.root, store.commit_log_dir):
        try:
            names = os.listdir(beside(path))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # the start of the broker reports this
        numbers += [int(name) for name in names if _is_used(f"{beside(path)}/{name}", name)]
    return max(numbers) + 1


def _is_used(path: str, name: str) -> bool:
    return name.isdecimal() and os.path.isdir(path) and bool(os.listdir(path))


def check_none_is_left_out(store: StoreConfig, masters: int) -> None:
    """Raise StoreError if the messages of a store would not be served."""
    count = masters_with_stores(store)
    if count > masters:
        raise StoreError(
            f"stores of {count} masters exist ({store.root} and those in"
            f" {beside(store.root)}), but masters is {masters}, so messages would be missing:"
            f" start with --masters {count}; to reduce masters, first drain the last ones"
            " (wipeWritePerm, until their groups have no lag), stop, and move their folders away."
        )
