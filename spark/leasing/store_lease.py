"""The lease on a store directory: a file that the kernel holds for this process.

storage/retention/leases.py has its rules.
"""

import sys
from collections.abc import Mapping
from uuid import uuid4

from storage.errors import reason_of
from storage.files.disk import RealDisk
from storage.retention.leases import FileLease, lowest_in_store

Queues = Mapping[tuple[str, int], int]
"""Topic and queue id, and the first queue offset that is needed."""


def say(line: str) -> None:
    """Write a line of the job to standard error."""
    print(f"troupemq: {line}", file=sys.stderr, flush=True)


class StoreLease:
    """Lease of a store directory; without effect where none is possible."""

    def __init__(self, store: str, commit_log: str | None, job: str, offset: int = 0) -> None:
        """Initialize the lease from `offset` of the log on; 0 retains everything."""
        self._disk = RealDisk()
        self._store = store
        self._log_dirs = (commit_log or f"{store}/commitlog").split(",")
        self._lease: FileLease | None = None
        try:
            name = uuid4().hex
            self._lease = FileLease.acquire(self._disk, store, name, job, offset)
        except OSError as error:
            say(f"no lease on {store}, so its broker may delete files: {reason_of(error)}")

    @property
    def is_held(self) -> bool:
        return self._lease is not None

    def lowest(self, queues: Queues) -> int:
        """Return the first physical offset that is needed. Raises OSError."""
        return lowest_in_store(self._disk, self._store, self._log_dirs, queues)

    def move(self, queues: Queues) -> None:
        """Set what is needed from now on; keep the lease unchanged if that cannot be determined."""
        if self._lease is None:
            return
        try:
            self._lease.move(self.lowest(queues))
        except OSError as error:
            say(f"the lease on {self._store} stays where it is: {reason_of(error)}")

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()
        self._lease = None
