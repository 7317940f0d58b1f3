"""Errors of the system name the file, the reason and the remedy for the operator."""

import errno
import os

import pytest

from storage.errors import DiskFull, os_sentence, reason_of, store_error

REASONS = {
    errno.EACCES: "Permission denied; allow the user of this process, or name another place",
    errno.ENOENT: "No such file or directory; make it, or correct the path",
    errno.ENOTDIR: "Not a directory; a file is in the way: move it, or name another place",
    errno.EISDIR: "Is a directory; name a file",
    errno.EMFILE: "Too many open files; raise `ulimit -n`",
    errno.EIO: "Input/output error; check the disk",
    errno.EXDEV: "Invalid cross-device link",
}


@pytest.mark.parametrize("code", REASONS)
def test_an_os_error_is_reported_with_reason_and_remedy(code: int) -> None:
    error = OSError(code, os.strerror(code), "/store/file")
    assert reason_of(error) == REASONS[code]
    assert os_sentence(error) == f"/store/file: {REASONS[code]}."
    said = str(store_error("cannot open it", error))
    assert said == f"cannot open it (/store/file): {REASONS[code]}."
    assert str(error) not in said


def test_an_os_error_without_file_or_errno_is_still_described() -> None:
    assert os_sentence(OSError("unknown cause")) == "unknown cause."
    assert os_sentence(OSError(errno.EIO, os.strerror(errno.EIO))) == f"{REASONS[errno.EIO]}."
    assert str(store_error("no", OSError(errno.EIO, "I/O"))) == "no: I/O; check the disk."


def test_a_full_disk_is_an_error_of_its_own() -> None:
    full = store_error("cannot write", OSError(errno.ENOSPC, "", "/store/file"))
    assert isinstance(full, DiskFull) and "make room" in str(full)
