"""Format number of a store, which reveals a store written by a later version.

Every start that may write saves `<root>/troupemq/format.json` (checked_json):

    format   the number; 0 without this file
    needs    first version of TroupeMQ that opens this format

    0   before this file; also stores of RocketMQ 4.9.7
    1   with this file

RocketMQ ignores the file, so a store that it has used keeps its number.

`<root>/troupemq/backup.running.json` marks a copy in progress, which no start accepts.
storage/backup/ creates and removes it. RocketMQ ignores it and would open the incomplete store.
"""

from json import loads
from typing import Any

from storage.config import StoreConfig
from storage.errors import NewerStore, UnfinishedCopy, store_error
from storage.files.checked_json import write_checked
from storage.files.disk import Disk

STORE_FORMAT = 1
NEEDS = "0.1.0"
"""First version that opens STORE_FORMAT."""


def format_of(config: StoreConfig, disk: Disk) -> int:
    """Return the stored format number; 0 if the file is missing or invalid."""
    return _number(_read(config, disk))


def require_known_format(config: StoreConfig, disk: Disk) -> None:
    """Raise NewerStore for the format of a later version, StoreError if the file is unreadable.

    A damaged file is read as far as possible. A false rejection is better than a write to a store
    of unknown format.
    """
    found = _read(config, disk)
    if _number(found) <= STORE_FORMAT:
        return
    needs = str(found.get("needs") or "a later version")
    raise NewerStore(
        f"the store {config.root} has format {_number(found)}, but this version supports formats up"
        f" to {STORE_FORMAT}: start TroupeMQ {needs} or later, or restore the copy from before the"
        " upgrade; `troupemq store dump` can still read it."
    )


def write_format(config: StoreConfig, disk: Disk) -> None:
    """Set the store's format to that of this version. Raises StoreError."""
    value = {"format": STORE_FORMAT, "needs": NEEDS}
    if _read(config, disk) != value:
        write_checked(disk, config.format_path, value)


def _number(found: dict[str, Any]) -> int:
    number = found.get("format")
    return number if isinstance(number, int) else 0


def _read(config: StoreConfig, disk: Disk) -> dict[str, Any]:
    try:
        if not disk.exists(config.format_path):
            return {}
        found = loads(disk.read_bytes(config.format_path).partition(b"\n")[0])
    except OSError as error:
        raise store_error(f"cannot read {config.format_path}", error) from error
    except (RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def mark_path(root: str) -> str:
    return f"{root}/troupemq/backup.running.json"


def require_finished_copy(config: StoreConfig, disk: Disk) -> None:
    """Raise UnfinishedCopy for a store with a running or aborted copy."""
    if disk.exists(mark_path(config.root)):
        raise UnfinishedCopy(
            f"the store {config.root} is an unfinished copy: run `troupemq store backup`"
            " or `troupemq store restore` again, as before."
        )
