"""Back-pressure of a producer: limits on its in-flight sends and their bytes."""

from collections.abc import Callable
from threading import Condition
from time import monotonic

from troupemq.client.errors import ClientBusy


class InFlight:
    """Quota of in-flight sends; for any thread. A single send may have any size."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._changed = Condition()
        self._waiting = 0
        self.count = 0
        self.bytes = 0

    def enter(
        self, size_bytes: int, deadline_s: float, may_wait: Callable[[], bool] = lambda: True
    ) -> None:
        """Take a slot for a send; wait for one until `deadline_s` (monotonic) if `may_wait()`.

        Raises ClientBusy, and then holds no slot.
        """
        with self._changed:
            if not self._has_room(size_bytes):
                self._wait(size_bytes, deadline_s if may_wait() else 0.0)
            self.count += 1
            self.bytes += size_bytes

    def _has_room(self, size_bytes: int) -> bool:
        if self.count == 0:
            return True
        return self.count < self._count_max and self.bytes + size_bytes <= self._bytes_max

    def _wait(self, size_bytes: int, deadline_s: float) -> None:
        left_s = max(0.0, deadline_s - monotonic())
        self._waiting += 1
        try:
            has_room = self._changed.wait_for(lambda: self._has_room(size_bytes), left_s)
        finally:
            self._waiting -= 1
        if not has_room:
            raise ClientBusy(
                f"{self.count} sends of {self.bytes} bytes are in flight already:"
                " wait for some of their futures first"
            )

    def leave(self, size_bytes: int) -> None:
        """Release the slot of a finished send."""
        with self._changed:
            self.count -= 1
            self.bytes -= size_bytes
            if self._waiting:
                self._changed.notify_all()

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no send is in flight; return False on timeout."""
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: self.count == 0, timeout_s)
            finally:
                self._waiting -= 1
