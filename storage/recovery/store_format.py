"""The number of a store's format, by which a version knows a store that a later one has written.

`<root>/troupemq/format.json` (checked_json), written by whoever opens the store to write to it:

    format   the number; a store without this file has 0
    needs    the first version of TroupeMQ that opens this format

    0   up to this file; what RocketMQ 4.9.7 leaves
    1   this file

RocketMQ leaves the file alone, so a store that it had meanwhile keeps its number.
"""

from json import loads
from typing import Any

from storage.config import StoreConfig
from storage.errors import NewerStore, store_error
from storage.files.checked_json import write_checked
from storage.files.disk import Disk

STORE_FORMAT = 1
NEEDS = "0.1.0"
"""The first version that opens STORE_FORMAT."""


def format_of(config: StoreConfig, disk: Disk) -> int:
    """The number that the file says; 0 if there is none, or if nothing can be made of it."""
    return _number(_read(config, disk))


def require_known_format(config: StoreConfig, disk: Disk) -> None:
    """Raises NewerStore for a store that only a later version opens, StoreError if unreadable.

    A damaged file counts as far as it can be read: what is worse than a number too much is a store
    that is written to by somebody who does not know it.
    """
    found = _read(config, disk)
    if _number(found) <= STORE_FORMAT:
        return
    needs = str(found.get("needs") or "a later version")
    raise NewerStore(
        f"the store {config.root} has format {_number(found)}, and this version knows those up to"
        f" {STORE_FORMAT}: start TroupeMQ {needs} or later, or restore the copy from before the"
        " upgrade; `troupemq store dump` reads it all the same."
    )


def write_format(config: StoreConfig, disk: Disk) -> None:
    """From now on the store has this version's format. Raises StoreError."""
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
