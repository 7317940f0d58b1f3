"""A child process with its output in a file: started, watched, and stopped without a trace."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

STOP_DEADLINE_S = 30


class Child:
    """One server process; `with` ends it."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._out: IO[bytes] = log.open("ab")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code; None if the process still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> int | None:
        """Asks it to end (SIGTERM) and returns its exit code; None if it had to be killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        code = self.wait(STOP_DEADLINE_S)
        if code is None:
            self._process.kill()
            self._process.wait()
        self._out.close()
        return code

    def kill(self) -> None:
        """Ends it as a power cut would: nothing of it runs any more (SIGKILL)."""
        self._process.kill()
        self._process.wait()
        self._out.close()

    def last_words(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
