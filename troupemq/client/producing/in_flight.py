"""Back-pressure of a producer: limits on the sends, and their bytes, that are under way at once."""

from collections.abc import Callable
from threading import Condition
from time import monotonic

from troupemq.client.errors import ClientBusy


class InFlight:
    """Lets sends in while there is room; for any thread. One that is alone may have any size."""

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
        """Let one in, waiting for room until `deadline_s` (monotonic) where the caller may wait.

        Raises ClientBusy; then it is not in.
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
                f"{self.count} sends of {self.bytes} bytes are under way already:"
                " wait for some of their futures first"
            )

    def leave(self, size_bytes: int) -> None:
        """One that was let in is done."""
        with self._changed:
            self.count -= 1
            self.bytes -= size_bytes
            if self._waiting:
                self._changed.notify_all()

    def wait_empty(self, timeout_s: float) -> bool:
        """Waits until none is under way; False if that takes longer."""
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: self.count == 0, timeout_s)
            finally:
                self._waiting -= 1
