"""The disk of this machine and the one that forgets, for tests of what both promise."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from storage.files.disk import Disk, RealDisk
from troupemq.testing.fake_disk import FakeDisk

_HOLDS_THE_LOCK = (
    "import fcntl, os, sys\n"
    "fd = os.open(sys.argv[1], os.O_RDWR)\n"
    "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
    "print('locked', flush=True)\n"
    "sys.stdin.read()\n"
)


class DiskAtHand(Protocol):
    """A disk, a directory of it that is the test's own, and what happens to a disk from outside."""

    disk: Disk
    root: str

    def wind_clock_of(self, path: str, now_ms: int) -> None:
        """Make present writes to the file date from `now_ms`."""

    def set_mode(self, path: str, mode: int) -> None:
        """Change the permissions of a file."""

    def mode(self, path: str) -> int:
        """Return the permissions of a file."""

    @contextmanager
    def locked_elsewhere(self, path: str) -> Iterator[None]:
        """Another process has byte 0 of the file locked meanwhile."""


class RealAtHand:
    def __init__(self, directory: Path) -> None:
        self.disk: Disk = RealDisk()
        self.root = str(directory)

    def wind_clock_of(self, path: str, now_ms: int) -> None:
        os.utime(path, ns=(0, now_ms * 1_000_000))

    def set_mode(self, path: str, mode: int) -> None:
        os.chmod(path, mode)

    def mode(self, path: str) -> int:
        return os.stat(path).st_mode & 0o7777

    @contextmanager
    def locked_elsewhere(self, path: str) -> Iterator[None]:
        command = [sys.executable, "-S", "-c", _HOLDS_THE_LOCK, path]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"locked\n"
            yield
            other.communicate()


class FakeAtHand:
    """The one that forgets; each of its open files is as one of another process."""

    def __init__(self) -> None:
        self.fake = FakeDisk()
        self.disk: Disk = self.fake
        self.root = "/root"
        self.disk.make_dirs(self.root)

    def wind_clock_of(self, path: str, now_ms: int) -> None:
        self.fake.now_ms = now_ms
        file = self.disk.open(path)
        file.pwrite(file.pread(1, 0), 0)
        file.close()

    def set_mode(self, path: str, mode: int) -> None:
        self.fake.access_of(path, f"{mode:o}")

    def mode(self, path: str) -> int:
        return int(self.fake.access_of(path), 8)

    @contextmanager
    def locked_elsewhere(self, path: str) -> Iterator[None]:
        other = self.disk.open(path)
        assert other.lock_byte()
        yield
        other.close()
