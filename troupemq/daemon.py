"""Life of a serving process: start, signals, stop, deadlines, exit codes.

    exit 0    clean stop: after SIGTERM, SIGINT, or the end of one-time work
    exit 1    failure while running, or an unclean stop (the store's file `abort` then remains)
    10 …      failed start, see troupemq/exit_codes.py; 1 for a reason without a code

The main thread only waits. A second signal, or a stop past its deadline, ends the process at once.
SIGTERMs in quick succession count as one: process managers signal the process, then its group.
"""

import json
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from errno import ENOSPC
from math import inf
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from types import FrameType
from typing import Any, TypeAlias

from structlog import get_logger

from actors.engine.short_collections import set_aside, short_collections
from actors.engine.system import StartFailed
from actors.network.connections import PortTaken
from storage.errors import StoreError, WrongSetting, os_sentence, reason_of
from troupemq.client.errors import ClientError
from troupemq.exit_codes import exit_code_of
from troupemq.health.notify import Notifier
from troupemq.interrupts import INTERRUPTED, Interrupts, Wakeup, ignore_signals
from troupemq.text import FAILED, say, tell

log = get_logger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""Thread switch interval; Python's default of 5 ms would delay the event loop."""

STOP_TIMEOUT_S = 20.0
DEADLINE_S = 25.0
"""Deadline of the whole stop; leaves some time after STOP_TIMEOUT_S."""

ONE_SIGTERM_S = 2.0
"""SIGTERMs within this time of the first count as one."""

CTRL_C_ENDS_IT = "Press Ctrl-C to stop."
STOPPED = "Stopped."

FILE_MASK = 0o027
"""umask that gives directories 0750 and files 0640."""

OPERATOR_ERRORS = (StoreError, PortTaken, ClientError)
"""Errors that an operator can fix; their text is one sentence."""


@dataclass(frozen=True)
class Serving:
    ports: Mapping[str, int]
    stop: Callable[[float], bool]
    """Stops within a timeout in seconds; returns False after an unclean stop."""
    is_alive: Callable[[float], bool] = lambda _: True
    """Returns whether every loop answers within a timeout in seconds."""


@dataclass(frozen=True)
class _Signalled:
    number: int
    at_s: float

    def insists_after(self, first: "_Signalled") -> bool:
        """Return whether this signal asks for an immediate end, not the same stop again."""
        if signal.SIGHUP in (self.number, first.number):  # sent beside others, or before them
            return False
        is_repeated = self.number == first.number == signal.SIGTERM
        return not is_repeated or self.at_s - first.at_s >= ONE_SIGTERM_S


@dataclass(frozen=True)
class _GaveUp:
    reason: str


@dataclass(frozen=True)
class _WorkEnded:
    failure: str | None
    code: int


@dataclass(frozen=True)
class _Stopped:
    failure: str | None


_News: TypeAlias = _Signalled | _GaveUp | _WorkEnded | _Stopped
Start: TypeAlias = Callable[[Callable[[str], None]], Serving]
"""Starts the servers; its argument is to be called, with a reason, if a supervisor gives up."""

Work: TypeAlias = Callable[[Event], None]
"""Work to do while serving; the event is set when the result is no longer wanted."""


def keep_files_private() -> None:
    """Restrict new files to this process's user and group: directories 0750, files 0640."""
    os.umask(FILE_MASK)


def serve(
    start: Start,
    *,
    ready_file: Path | None = None,
    work: Work | None = None,
    once: bool = False,
    says_end: bool = True,
    keeps_file: bool = False,
    cancelled: str = "",
    deadline_s: float = DEADLINE_S,
    end_process: Callable[[int], Any] = os._exit,
    clock: Callable[[], float] = monotonic,
) -> int:
    """Start, serve, stop, and return the exit code. Must run on the main thread.

    `ready_file`: file for process id and ports as JSON, written once they answer, removed at the
    end. `work`: runs on its own thread; with `once` the process stops after it. `says_end`: print a
    line after a clean stop. `keeps_file`: keep the ready file, as its bytes can be written
    again when the disk is full. `cancelled`: last line of a stop that is cut short, with exit code
    130 instead of 1. `clock`: time of signals in seconds.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_files_private()
    process = _Process(ready_file, work, once, cancelled, deadline_s, end_process, clock)
    process.keeps_file = keeps_file
    code = process.run(start)
    if code == 0 and says_end and not once:
        tell(STOPPED)
    return code


class _Process:
    def __init__(
        self,
        ready_file: Path | None,
        work: Work | None,
        once: bool,
        cancelled: str,
        deadline_s: float,
        end_process: Callable[[int], Any],
        clock: Callable[[], float],
    ) -> None:
        self._ready_file = ready_file
        self.keeps_file = False
        self._work = work
        self._once = once
        self._cancelled = cancelled
        self._deadline_s = deadline_s
        self._end_process = end_process
        self._clock = clock
        self._notifier = Notifier(os.environ)
        self._first_signal: _Signalled | None = None
        self._news: deque[_News] = deque()
        self._wakeup = Wakeup()
        self._work_is_over = Event()

    def run(self, start: Start) -> int:
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as after nohup
            numbers.append(signal.SIGHUP)  # a closed terminal ends 4.9.7 in order, too
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            with self._wakeup, short_collections():
                return self._run(start)
        finally:
            self._notifier.close()
            if isinstance(before[signal.SIGINT], Interrupts):
                ignore_signals()  # the command is ending
            else:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _run(self, start: Start) -> int:
        self._notifier.starting()
        try:
            serving = start(lambda reason: self._tell(_GaveUp(reason)))
        except (*OPERATOR_ERRORS, StartFailed, OSError) as error:
            say(sentence_of(error))
            return exit_code_of(error)
        set_aside()  # objects of the start live on
        try:
            self._write_ready_file(serving)
        except OSError as error:
            say(f"Cannot write the ready file {self._ready_file}: {reason_of(error)}.")
            self._stop(serving)
            wrong = isinstance(error, FileNotFoundError)  # a wrong path on the command line
            return exit_code_of(WrongSetting(str(error)) if wrong else error)
        self._notifier.ready(f"Serving; {ports_text(serving.ports)}.", serving.is_alive)
        if self._work is not None:
            Thread(target=self._do_work, name="work", daemon=True).start()
        code = self._wait()
        self._work_is_over.set()
        code = self._stop(serving) or code
        if self._ready_file is not None and not self.keeps_file:
            try:
                self._ready_file.unlink(missing_ok=True)
            except OSError as error:
                say(f"Cannot remove the ready file {self._ready_file}: {reason_of(error)}.")
                return 1
        return code

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._tell(_Signalled(number, self._clock()))

    def _tell(self, news: _News) -> None:
        """Send news to the main thread, from any thread or signal handler."""
        self._news.append(news)
        self._wakeup.wake()

    def _next(self, most_s: float) -> _News | None:
        """Return the next news for the main thread; None if none comes within `most_s`."""
        if not self._news:
            self._wakeup.wait(most_s)
        return self._news.popleft() if self._news else None

    def _wait(self) -> int:
        """Wait until the process must stop; return the exit code of a clean stop."""
        while True:
            match self._next(inf):
                case _Signalled(number) as news:
                    self._first_signal = news
                    log.info("stop requested", signal=signal.Signals(number).name)
                    return 0
                case _GaveUp(reason):
                    say(f"Gave up: {reason}")
                    return 1
                case _WorkEnded(failure, code):
                    if failure is not None:
                        say(failure)
                    if self._once:
                        return code

    def _stop(self, serving: Serving) -> int:
        self._notifier.stopping()
        Thread(target=self._do_stop, args=(serving,), name="stop", daemon=True).start()
        deadline_s = monotonic() + self._deadline_s
        while True:
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                return self._end_now(f"Stop timed out after {self._deadline_s:.0f} s.")
            match self._next(left_s):
                case _Signalled() as news:
                    first = self._first_signal
                    if first is not None and news.insists_after(first):
                        return self._end_now("Received a second signal.")
                    if first is None or first.number == signal.SIGHUP:
                        self._first_signal = news
                case _Stopped(failure):
                    if failure is not None:
                        say(failure)
                        return 1
                    return 0

    def _do_stop(self, serving: Serving) -> None:
        failure: str | None = "Stop failed: see the traceback above."
        try:
            in_order = serving.stop(STOP_TIMEOUT_S)
            failure = None if in_order else "Stop was not clean: see the log for details."
        except OPERATOR_ERRORS as error:
            failure = str(error)
        finally:
            self._tell(_Stopped(failure))

    def _do_work(self) -> None:
        assert self._work is not None
        failure: str | None = "Failed: see the traceback above."
        code = FAILED
        try:
            self._work(self._work_is_over)
            failure, code = None, 0
        except OPERATOR_ERRORS as error:
            failure, code = sentence_of(error), exit_code_of(error)
        finally:
            if not self._work_is_over.is_set():
                self._tell(_WorkEnded(failure, code))

    def _end_now(self, why: str) -> int:
        code = INTERRUPTED if self._cancelled else FAILED
        say(self._cancelled or f"{why} The next start recovers the store.")
        sys.stdout.flush()
        self._end_process(code)
        return code

    def _write_ready_file(self, serving: Serving) -> None:
        if self._ready_file is None:
            return
        text = json.dumps({"pid": os.getpid(), **serving.ports}) + "\n"
        unfinished = self._ready_file.with_name(self._ready_file.name + ".tmp")
        try:
            unfinished.write_text(text)
            unfinished.replace(self._ready_file)
        except OSError as error:
            if error.errno != ENOSPC or not self._ready_file.exists():
                raise
            size = self._ready_file.stat().st_size
            with self._ready_file.open("r+") as file:  # takes no space that it does not have
                file.write(text.rstrip().ljust(size - 1) + "\n")


def sentence_of(error: BaseException) -> str:
    """Return the operator's sentence for an error; print the traceback of an unexpected one."""
    cause = error.__cause__ if isinstance(error, StartFailed) else error
    if isinstance(cause, OPERATOR_ERRORS):
        return str(cause)
    if isinstance(cause, OSError) and cause.strerror:
        return os_sentence(cause)
    traceback.print_exception(error)
    return str(error)


def ports_text(ports: Mapping[str, int]) -> str:
    return ", ".join(f"{name} port {port}" for name, port in ports.items())
