"""A process that serves until it is told to stop: signals, order, deadlines, exit codes.

    exit 0   stopped in order: SIGTERM, SIGINT, or the end of work that was to be done once
    exit 1   it gave up, or was not stopped in order (`abort` is kept then)
    10 …     it could not start: troupemq/exit_codes.py says why; 1 where it has no code for it

The main thread does nothing but wait. A second signal, or a stop that takes too long, ends the
process at once. SIGTERMs that come together are one signal: supervisors of processes send it to the
process and then to its group.
"""

import json
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from troupemq.saying import FAILED, say, tell

log = get_logger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter to itself: the loop must not wait 5 ms for it."""

STOP_TIMEOUT_S = 20.0
DEADLINE_S = 25.0
"""For all of the stop; a service that keeps to STOP_TIMEOUT_S has some time left over."""

ONE_SIGTERM_S = 2.0
"""SIGTERMs that come before that time has passed since the first are the same one."""

CTRL_C_ENDS_IT = "Ctrl-C ends it."
STOPPED = "Stopped."
"""What a terminal shows of a process that serves, first and last."""

FILE_MASK = 0o027
"""Directories 0750, files 0640."""

OPERATOR_ERRORS = (StoreError, PortTaken, ClientError)
"""What an operator can mend; the text is one sentence for them."""


@dataclass(frozen=True)
class Serving:
    """What runs: where it listens, and how it stops (False: not in order)."""

    ports: Mapping[str, int]
    stop: Callable[[float], bool]
    is_alive: Callable[[float], bool] = lambda _: True
    """Whether every loop answers within so many seconds: for a watchdog."""


@dataclass(frozen=True)
class _Signalled:
    number: int
    at_s: float

    def insists_after(self, first: "_Signalled") -> bool:
        """Whether somebody who had sent the first one wants more by this one."""
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
"""Starts everything; is given what to call when the supervisor gives up."""

Work: TypeAlias = Callable[[Event], None]
"""Something to do while serving; the event says that nobody waits for it any more."""


def keep_files_private() -> None:
    """What this process makes is for its user and group only: directories 0750, files 0640."""
    os.umask(FILE_MASK)


def serve(
    start: Start,
    *,
    ready_file: Path | None = None,
    work: Work | None = None,
    once: bool = False,
    says_end: bool = True,
    cancelled: str = "",
    deadline_s: float = DEADLINE_S,
    end_process: Callable[[int], Any] = os._exit,
    clock: Callable[[], float] = monotonic,
) -> int:
    """Starts, serves, stops; gives the exit code. Only on the main thread.

    `work` runs on a thread of its own; with `once` its end is the end. `ready_file` gets the real
    ports as JSON as soon as they answer, and is removed at the end. `says_end`: that it has stopped
    is told on stdout. `cancelled` is the last line where the stop is cut short, with exit code 130;
    without it the line and the code are those of a server. `clock` tells, in seconds, when a signal
    comes.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_files_private()
    process = _Process(ready_file, work, once, cancelled, deadline_s, end_process, clock)
    code = process.run(start)
    if code == 0 and says_end and not once:
        tell(STOPPED)
    return code


class _Process:
    """One run of `serve`."""

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
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            with self._wakeup, short_collections():
                return self._run(start)
        finally:
            self._notifier.close()
            if isinstance(before[signal.SIGINT], Interrupts):
                ignore_signals()  # the command ends now: a signal changes nothing any more
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
        set_aside()  # what a start has made stays
        try:
            self._write_ready_file(serving)
        except OSError as error:
            say(f"Cannot write the ready file {self._ready_file}: {reason_of(error)}.")
            self._stop(serving)
            wrong = isinstance(error, FileNotFoundError)  # what the command line says cannot work
            return exit_code_of(WrongSetting(str(error)) if wrong else error)
        self._notifier.ready(f"Serves; {ports_text(serving.ports)}.", serving.is_alive)
        if self._work is not None:
            Thread(target=self._do_work, name="work", daemon=True).start()
        code = self._wait()
        self._work_is_over.set()
        code = self._stop(serving) or code
        if self._ready_file is not None:
            try:
                self._ready_file.unlink(missing_ok=True)
            except OSError as error:
                say(f"Cannot remove the ready file {self._ready_file}: {reason_of(error)}.")
                return 1
        return code

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._tell(_Signalled(number, self._clock()))

    def _tell(self, news: _News) -> None:
        """Tell the main thread: on any thread, and in a handler that interrupts the main one."""
        self._news.append(news)
        self._wakeup.wake()

    def _next(self, most_s: float) -> _News | None:
        """Return what the main thread has been told; None: nothing, after a wait."""
        if not self._news:
            self._wakeup.wait(most_s)
        return self._news.popleft() if self._news else None

    def _wait(self) -> int:
        """Returns when it is time to stop, with the exit code of a clean stop."""
        while True:
            match self._next(inf):
                case _Signalled(number) as news:
                    self._first_signal = news
                    log.info("stopping", signal=signal.Signals(number).name)
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
                return self._end_now(f"Not stopped after {self._deadline_s:.0f} s.")
            match self._next(left_s):
                case _Signalled() as news:
                    first = self._first_signal = self._first_signal or news
                    if news is not first and news.insists_after(first):
                        return self._end_now("Told twice to stop.")
                case _Stopped(failure):
                    if failure is not None:
                        say(failure)
                        return 1
                    return 0

    def _do_stop(self, serving: Serving) -> None:
        failure: str | None = "Stopping failed: the traceback says where."
        try:
            in_order = serving.stop(STOP_TIMEOUT_S)
            failure = None if in_order else "Not everything stopped in order: the log says what."
        except OPERATOR_ERRORS as error:
            failure = str(error)
        finally:
            self._tell(_Stopped(failure))

    def _do_work(self) -> None:
        assert self._work is not None
        failure: str | None = "Failed: the traceback says where."
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
        say(self._cancelled or f"{why} What was not flushed will be recovered at the next start.")
        sys.stdout.flush()
        self._end_process(code)
        return code

    def _write_ready_file(self, serving: Serving) -> None:
        if self._ready_file is None:
            return
        unfinished = self._ready_file.with_name(self._ready_file.name + ".tmp")
        unfinished.write_text(json.dumps({"pid": os.getpid(), **serving.ports}) + "\n")
        unfinished.replace(self._ready_file)


def sentence_of(error: BaseException) -> str:
    """What an operator should read of an error; what they cannot mend comes with its traceback."""
    cause = error.__cause__ if isinstance(error, StartFailed) else error
    if isinstance(cause, OPERATOR_ERRORS):
        return str(cause)
    if isinstance(cause, OSError) and cause.strerror:
        return os_sentence(cause)
    traceback.print_exception(error)
    return str(error)


def ports_text(ports: Mapping[str, int]) -> str:
    """Where something listens, in words."""
    return ", ".join(f"{name} port {port}" for name, port in ports.items())
