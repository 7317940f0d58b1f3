"""Errors between the store and its disk, each one sentence for the operator."""

import errno


class StoreError(Exception):
    """The disk, or what lies on it, does not allow to go on; the text says what to do.

    Whoever catches it stops accepting writes; nothing here is the fault of a client.
    """


class StoreLocked(StoreError):
    """Another process, or another store in this one, has the directory open."""


class WrongSetting(StoreError):
    """A setting that cannot work; the text names its key."""


class NewerStore(StoreError):
    """A later version has written the store; the text says which one opens it."""


class UnfinishedCopy(StoreError):
    """The store is a copy that is being made, or whose making was interrupted."""


class ClockBehind(StoreError):
    """The clock says an earlier time than the store had long ago."""


class NotPermitted(StoreError):
    """What lies there may not be read or written by this process, or is no such file or folder."""


class TooManyFiles(StoreError):
    """The process, or the machine, may not open another file."""


class DiskFull(StoreError):
    """No room for what had to be written; nothing of it counts as written."""


class SyncFailed(StoreError):
    """A flush failed once, so this file's unflushed bytes cannot be trusted until it is reopened.

    The kernel may have marked the failed pages clean: a second flush that succeeds proves nothing.
    """


class OffsetError(Exception):
    """An offset outside what the file or the log holds; the caller's mistake, not the disk's."""


_NOT_ALLOWED = "let the user of this process use it, or name another place"
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
    errno.EIO: "look after the disk",
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
    """Why the system refused, and what an operator can do, in words without a full stop."""
    reason = error.strerror or str(error)
    advice = _ADVICE.get(error.errno or 0)
    return f"{reason}; {advice}" if advice else reason


def os_sentence(error: OSError) -> str:
    """An OSError as one sentence: which file, why, what to do."""
    return f"{error.filename}: {reason_of(error)}." if error.filename else f"{reason_of(error)}."


def store_error(what: str, error: OSError) -> StoreError:
    """An OSError as one sentence: what could not be done, on which file, why."""
    name = f" ({error.filename})" if error.filename else ""
    if error.errno == errno.ENOSPC:
        return DiskFull(f"{what}{name}: the disk is full; make room or delete old files.")
    return kind_of(error)(f"{what}{name}: {reason_of(error)}.")


def kind_of(error: OSError) -> type[StoreError]:
    """What an operator has to mend of it: permissions, room, limits, or something else."""
    return _KINDS.get(error.errno or 0, StoreError)
