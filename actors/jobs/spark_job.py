"""One run of a Spark job: a child process, supervised by an actor on a thread.

Owns: the child, its work directory, its log.
Receives: Cancel from SparkJobs; its own _Poll and _EndChild.
Sends: JobChanged to SparkJobs.

The protocol of the child is in spark/runner.py. The child leads a process group with the JVM. If it
fails, the broker serves on: the run fails with one sentence. Jobs publish only complete results.

A run is ended in three steps, STEP_MS apart: the line `cancel`, the end of the child's input,
SIGKILL for the group. The child also sees the end of its input if this process dies.
"""

import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from select import select
from subprocess import PIPE, Popen
from typing import Any, BinaryIO, ClassVar, TypeAlias

from actors.engine.actor import Actor, Where, handles
from actors.engine.server_log import get_logger
from actors.jobs.messages import NICE_MAX, Cancel, JobChanged, JobOrder, JobState
from storage.child_python import link_packages, process_descriptor
from storage.errors import StoreError, os_sentence
from storage.files.below import below

log = get_logger(__name__)

SCHED_IDLE = 5
"""Linux's number; PyPy has no name for it."""

LOGS_MAX = 20
STEP_MS = 5_000
"""Delay between the steps that end a run; a cancelled Spark job needs about 1 s."""

POLL_S = 0.25
"""Longest wait for the child before the actor checks its inbox."""

TAIL_LINES = 20
TAIL_BYTES_MAX = 16 * 1024
"""Limit of the log's end that is kept with a failed run, as log files are deleted."""

LINE_BYTES_MAX = 8 * 1024 * 1024
_READ_BYTES = 65_536
_PROGRESS = ("stage", "done", "tasks", "rows_done", "rows", "remaining_ms")
_LOCK = "troupemq-job.lock"
"""File in a work directory, locked while the run is in progress.

Every folder that has one is removed after a kill. A store has a file `lock`.
"""
_LOGS = f"*-{'[0-9]' * 13}.log"
"""Pattern of the logs, which have the names of runs; others beside them are not of jobs."""


@dataclass(frozen=True, slots=True)
class JobCommand:
    """Command that starts the child of one run."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    packages: Mapping[str, Path] = field(default_factory=dict)
    """Packages that `link_packages` links into the work directory, if Python lacks them."""


MakeCommand: TypeAlias = Callable[[JobOrder, str], JobCommand]
"""Function of (order, future work directory) that returns the command.

It runs on a thread and may take time. Raises StoreError if the job cannot run here.
"""


@dataclass(slots=True)
class _Poll:
    """Read the child's output."""


@dataclass(slots=True)
class _EndChild:
    """Take this step towards the child's end, unless another was taken meanwhile."""

    step: int
    because: str | None = None


class ChildProcess:
    """Child of one run; methods return within `POLL_S`, `end` a little later."""

    def __init__(self, command: JobCommand, log_path: Path, nice: int = 0) -> None:
        """Start the child; `nice` also applies to its own children."""
        with log_path.open("ab") as errors:
            self._process = Popen(
                command.argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                env=dict(command.environment),
                process_group=0,
            )
        # The child has one thread so far: its later threads and children inherit this.
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, self.pid, own + nice)
        if nice == NICE_MAX:
            os.sched_setscheduler(self.pid, SCHED_IDLE, os.sched_param(0))
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input = self._process.stdin
        self._output = self._process.stdout
        self._exit_fd = process_descriptor(self.pid)
        self._rest = b""
        self._at_end = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def events(self) -> list[dict[str, Any]]:
        """Return new events; wait briefly for them. Raises ValueError for invalid output."""
        awaited = self._exit_fd if self._at_end else self._output.fileno()
        if not select([awaited], [], [], POLL_S)[0] or self._at_end:
            return []
        data = os.read(self._output.fileno(), _READ_BYTES)
        self._at_end = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise ValueError(f"a line of more than {LINE_BYTES_MAX} bytes")
        events = [json.loads(line) for line in lines]
        if not all(isinstance(event, dict) for event in events):
            raise ValueError("a line is not a JSON object")
        return events

    @property
    def has_ended(self) -> bool:
        """Whether the child has exited and its output is read; only `end` reaps it."""
        exited = bool(select([self._exit_fd], [], [], 0)[0])
        # The JVM may keep the pipe open: then silence counts as the end.
        return exited and (self._at_end or not select([self._output], [], [], 0)[0])

    def cancel(self) -> None:
        with suppress(OSError):  # the child is ending
            os.write(self._input.fileno(), b"cancel\n")

    def hang_up(self) -> None:
        """Close the child's input."""
        self._input.close()

    def kill(self) -> None:
        """Send SIGKILL to the rest of the group; the process id stays valid until `end`."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kill the rest, close everything; return the exit code, negative for a signal."""
        self.kill()
        code = self._process.wait()
        self._input.close()
        self._output.close()
        os.close(self._exit_fd)
        return code


class SparkJob(Actor):
    """Actor of one run, on a thread because it waits for its child."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        state: JobState,
        order: JobOrder,
        make_command: MakeCommand,
        directory: Path,
        tell_jobs: Callable[[JobChanged], None],
    ) -> None:
        super().__init__()
        self._state = state
        self._order = order
        self._make_command = make_command
        self._directory = directory
        self._work_directory = Path(below(str(directory), state.run))
        self._tell_jobs = tell_jobs
        self._child: ChildProcess | None = None
        self._lock: BinaryIO | None = None
        self._step = 0
        self._because: str | None = None
        """Reason of the failure, if known."""

    def on_start(self) -> None:
        log_path = Path(below(str(self._directory), f"{self._state.run}.log"))
        self._change(
            state="starting", log_path=str(log_path), started_ms=self.system.clock.now_ms()
        )
        try:
            command = self._make_command(self._order, str(self._work_directory))
            self._work_directory.mkdir(parents=True)
            self._lock = claimed(self._work_directory)
            link_packages(self._work_directory, command.packages)
            self._drop_old_logs()
            drop_leftovers(self._directory)
            self._child = ChildProcess(command, log_path, self._order.nice)
        except OSError as error:
            self._end(state="failed", sentence=os_sentence(error).rstrip("."), log_path=None)
            return
        except StoreError as error:
            self._end(state="failed", sentence=str(error), log_path=None)
            return
        log.info("job started", run=self._state.run, pid=self._child.pid)
        seconds = round(self._order.deadline_ms / 1000)
        late = f"timeout after {seconds} s: the run was ended"
        self.after(self._order.deadline_ms, _EndChild(0, late))
        self.address.tell(_Poll())

    def on_stop(self) -> None:
        self._clean_up()

    def on_failure(self, *_: object) -> None:
        self._clean_up()

    @handles(_Poll)
    def poll(self, _: _Poll) -> None:
        """Process the child's output; close the run at its end."""
        if self._child is None:
            return
        try:
            for event in self._child.events():
                self._heard(event)
        except ValueError as error:
            self._child.kill()
            self._because = f"its process wrote invalid output: {error}"
        if self._child.has_ended:
            self._ended(self._child.end())
        else:
            self.address.tell(_Poll())

    @handles(Cancel)
    def cancel(self, message: Cancel) -> None:
        step = 0 if message.gently else 1
        if self._step <= step:
            self._end_child(_EndChild(step))

    @handles(_EndChild)
    def end_child(self, message: _EndChild) -> None:
        if message.step == self._step:
            self._end_child(message)

    def _end_child(self, message: _EndChild) -> None:
        """Take a step towards the child's end, and schedule the next."""
        if self._child is None:
            return
        self._because = self._because or message.because
        self._step = message.step + 1
        log.info("job end requested", run=self._state.run, step=self._step)
        (self._child.cancel, self._child.hang_up, self._child.kill)[message.step]()
        if self._step < 3:
            self.after(STEP_MS, _EndChild(self._step))

    def _heard(self, event: Mapping[str, Any]) -> None:
        match event.get("event"):
            case "running":
                self._change(state="running")
            case "progress":
                self._change(**{name: event[name] for name in _PROGRESS if name in event})
            case "finished":
                self._state = replace(self._state, report=event["report"])
            case "failed":
                self._because = self._because or event["sentence"]

    def _ended(self, code: int) -> None:
        self._child = None
        if self._state.report is not None and code == 0:
            self._end(state="finished")
        elif self._because is not None:
            self._end(state="failed", sentence=self._because)
        elif self._step:
            self._end(state="cancelled")
        else:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self._end(state="failed", sentence=f"its process ended early, with {how}")

    def _end(self, **changes: Any) -> None:
        self._clean_up()
        if changes["state"] == "failed":
            changes["tail"] = tail_of(self._state.log_path)
        self._change(ended_ms=self.system.clock.now_ms(), remaining_ms=None, **changes)
        self.stop()

    def _change(self, **changes: Any) -> None:
        self._state = replace(self._state, **changes)
        self._tell_jobs(JobChanged(self._state))

    def _clean_up(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
        shutil.rmtree(self._work_directory, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _drop_old_logs(self) -> None:
        logs = sorted(self._directory.glob(_LOGS), key=lambda path: path.stat().st_mtime)
        for path in logs[: -LOGS_MAX + 1]:
            path.unlink(missing_ok=True)


def claimed(work_directory: Path) -> BinaryIO:
    """Lock a work directory; the lock lasts until the file is closed."""
    lock = (work_directory / _LOCK).open("wb")
    flock(lock, LOCK_EX)
    return lock


def drop_leftovers(directory: Path) -> None:
    """Remove work directories left by a killed broker or command."""
    for path in directory.iterdir():
        with suppress(OSError), (path / _LOCK).open("rb") as lock:
            flock(lock, LOCK_EX | LOCK_NB)  # OSError: in use
            shutil.rmtree(path, ignore_errors=True)


def tail_of(
    path: str | None, lines: int = TAIL_LINES, bytes_max: int = TAIL_BYTES_MAX
) -> tuple[str, ...]:
    """Return the last lines of a log; empty if the file is missing."""
    if path is None:
        return ()
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - bytes_max))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-lines:])
