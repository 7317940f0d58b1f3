"""Errors of the store and its disk, and findings of a start or a check of a store.

Each is one sentence for the operator.
"""

import errno
from typing import NamedTuple


class StoreError(Exception):
    """The disk or its content prevents further work; the text says what to do.

    The component that catches it stops accepting writes. No client causes this error.
    """


class StoreLocked(StoreError):
    """Another process, or another store in this process, has the directory open."""


class WrongSetting(StoreError):
    """An invalid setting; the text names its key."""


class NewerStore(StoreError):
    """A store that a later version has written; the text names a version that opens it."""


class UnfinishedCopy(StoreError):
    """A store that is the target of a running or interrupted copy."""


class ClockBehind(StoreError):
    """The clock is far behind the newest time in the store."""


class NotPermitted(StoreError):
    """A path that this process cannot read or write, or that is not the expected file or folder."""


class TooManyFiles(StoreError):
    """The process or the machine has reached its limit of open files."""


class DiskFull(StoreError):
    """No space for a write; no part of it counts as written."""


class SyncFailed(StoreError):
    """A flush failed once, so this file's unflushed bytes are untrusted until it is reopened.

    The kernel may have marked the failed pages clean: a second flush that succeeds proves nothing.
    """


class OffsetError(Exception):
    """An offset outside the file or the log: a mistake of the caller, not of the disk."""


_NOT_ALLOWED = "allow the user of this process, or name another place"
_IN_THE_WAY = "a file is in the way: move it, or name another place"
_ADVICE = {
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: "name another place",
    errno.ENOENT: "make it, or correct the path",
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EISDIR: "name a file",
    errno.EMFILE: "raise `ulimit -n`",
    errno.ENFILE: "raise the machine's fs.file-max",
    errno.ENOSPC: "make room or delete old files",
    errno.EDQUOT: "make room or raise the quota",
    errno.EIO: "check the disk",
}


_KINDS = {
    errno.EACCES: NotPermitted,
    errno.EPERM: NotPermitted,
    errno.EROFS: NotPermitted,
    errno.EEXIST: NotPermitted,
    errno.ENOTDIR: NotPermitted,
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EMFILE: TooManyFiles,
    errno.ENFILE: TooManyFiles,
}


def reason_of(error: OSError) -> str:
    """Return the reason for a system error and advice for the operator, without a full stop."""
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0)
    return f"{reason}; {advice}" if advice else reason


def os_sentence(error: OSError) -> str:
    """Return an OSError as one sentence: file, reason, advice."""
    return f"{error.filename}: {reason_of(error)}." if error.filename else f"{reason_of(error)}."


def store_error(what: str, error: OSError) -> StoreError:
    """Return an OSError as a StoreError that names operation, file, reason and advice."""
    name = f" ({error.filename})" if error.filename else ""
    if error.errno == errno.ENOSPC:
        return DiskFull(f"{what}{name}: the disk is full; make room or delete old files.")
    return kind_of(error)(f"{what}{name}: {reason_of(error)}.")


def kind_of(error: OSError) -> type[StoreError]:
    """Return the error class for what the operator must fix: permissions, space, limits, other."""
    return _KINDS.get(error.errno or 0, StoreError)


class Finding(NamedTuple):
    """Something wrong, or (a note) something that an operator may want to know."""

    part: str
    """One of: commit log, consume queues, index, checkpoint, config, transaction table, store."""
    text: str
    is_wrong: bool = True
