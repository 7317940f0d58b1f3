"""What can go wrong between the store and its disk, each told in one sentence for the operator."""

from errno import ENOSPC


class StoreError(Exception):
    """The disk, or what lies on it, does not allow to go on; the text says what to do.

    Whoever catches it stops accepting writes; nothing here is the fault of a client.
    """


class StoreLocked(StoreError):
    """Another process, or another store in this one, has the directory open."""


class DiskFull(StoreError):
    """No room for what had to be written; nothing of it counts as written."""


class SyncFailed(StoreError):
    """A flush failed once, so this file's unflushed bytes cannot be trusted until it is reopened.

    The kernel may have marked the failed pages clean: a second flush that succeeds proves nothing.
    """


class OffsetError(Exception):
    """An offset outside what the file or the log holds; the caller's mistake, not the disk's."""


def store_error(what: str, error: OSError) -> StoreError:
    """An OSError as one sentence: what could not be done, on which file, why."""
    name = f" ({error.filename})" if error.filename else ""
    if error.errno == ENOSPC:
        return DiskFull(f"{what}{name}: the disk is full; make room or delete old files.")
    return StoreError(f"{what}{name}: {error.strerror or error}.")
