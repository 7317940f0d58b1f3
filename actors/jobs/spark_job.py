"""One run of a Spark job: a child process, watched by an actor on a thread.

Owns: the child, its work directory, its log.   Told by: SparkJobs (`Cancel`), itself (`_Poll`).
Tells: SparkJobs (`JobChanged`).

What the child says and understands is in spark/runner.py. It leads a process group of its own,
which the JVM belongs to. Whatever becomes of it, the broker serves on: the run fails with one
sentence, and jobs publish what they made only when it is whole.

A run is ended in three steps, each some seconds after the one before: the line `cancel`; the end of
the child's input, which is also what it sees when this process dies; SIGKILL for the group.
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

from structlog import get_logger

from actors.engine.actor import Actor, Where, handles
from actors.jobs.messages import NICE_MAX, JobChanged, JobOrder, JobState
from storage.child_python import link_packages, process_descriptor
from storage.errors import StoreError, os_sentence
from storage.files.below import below

log = get_logger(__name__)

SCHED_IDLE = 5
"""Linux's number; PyPy has no name for it."""

LOGS_MAX = 20
STEP_MS = 5_000
"""Between the steps of ending a run; a cancelled Spark job takes about one second to end."""

POLL_S = 0.25
"""How long a SparkJob waits for its child before it looks at its mail."""

TAIL_LINES = 20
TAIL_BYTES_MAX = 16 * 1024
"""Of a log, kept with a run that failed: its file goes when others have come."""

LINE_BYTES_MAX = 8 * 1024 * 1024
_READ_BYTES = 65_536
_PROGRESS = ("stage", "done", "tasks", "rows_done", "rows", "remaining_ms")
_LOCK = "lock"
"""In a work directory: locked by whoever runs there."""


@dataclass(frozen=True, slots=True)
class JobCommand:
    """How to start the child of one run."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    packages: Mapping[str, Path] = field(default_factory=dict)
    """What `link_packages` links in the work directory: for a Python that does not have them."""


MakeCommand: TypeAlias = Callable[[JobOrder, str], JobCommand]
"""(order, work directory, which is made afterwards) → its command; called on a thread, where it may
take a while. Raises StoreError if the job cannot run here."""


@dataclass(slots=True)
class Cancel:
    """End the run; without a word if it is not `gently`."""

    gently: bool = True


@dataclass(slots=True)
class _Poll:
    """Look what the child says."""


@dataclass(slots=True)
class _EndChild:
    """Take the next step towards the child's end, unless another one was taken meanwhile."""

    step: int
    because: str | None = None


class ChildProcess:
    """The child of one run; every method returns within `POLL_S`, `end` within some more."""

    def __init__(self, command: JobCommand, log_path: Path, nice: int = 0) -> None:
        """`nice`: how far it stands back for a processor, and all that it starts."""
        with log_path.open("ab") as errors:
            self._process = Popen(
                command.argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                env=dict(command.environment),
                process_group=0,
            )
        # It has one thread yet: what it starts inherits this.
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
        """What the child has said since; waits a little for it. Raises ValueError for nonsense."""
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
            raise ValueError("a line that is no object")
        return events

    @property
    def has_ended(self) -> bool:
        """Whether it has said its last word and exited. It is not reaped before `end`."""
        exited = bool(select([self._exit_fd], [], [], 0)[0])
        # The JVM might hold our end of the pipe open: then silence is the end, too.
        return exited and (self._at_end or not select([self._output], [], [], 0)[0])

    def cancel(self) -> None:
        with suppress(OSError):  # it is ending already
            os.write(self._input.fileno(), b"cancel\n")

    def hang_up(self) -> None:
        """Ends the child's input."""
        self._input.close()

    def kill(self) -> None:
        """SIGKILL for whatever is left of the group. The child's id stays its own until `end`."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kills what is left, closes everything; the exit code, negative for a signal."""
        self.kill()
        code = self._process.wait()
        self._input.close()
        self._output.close()
        os.close(self._exit_fd)
        return code


class SparkJob(Actor):
    """One run. Lives on a thread, as it waits for its child."""

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
        """Why it failed, as far as is known."""

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
        late = f"it took longer than {seconds} s and was ended"
        self.after(self._order.deadline_ms, _EndChild(0, late))
        self.address.tell(_Poll())

    def on_stop(self) -> None:
        self._clean_up()

    def on_failure(self, *_: object) -> None:
        self._clean_up()

    @handles(_Poll)
    def poll(self, _: _Poll) -> None:
        """Takes what the child has said; at its end, closes the run."""
        if self._child is None:
            return
        try:
            for event in self._child.events():
                self._heard(event)
        except ValueError as error:
            self._child.kill()
            self._because = f"its process wrote nonsense: {error}"
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
        """The next step towards the child's end; the one after it follows by itself."""
        if self._child is None:
            return
        self._because = self._because or message.because
        self._step = message.step + 1
        log.info("ending job", run=self._state.run, step=self._step)
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
        logs = sorted(self._directory.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for path in logs[: -LOGS_MAX + 1]:
            path.unlink(missing_ok=True)


def claimed(work_directory: Path) -> BinaryIO:
    """Says that a work directory is in use, as long as the file is open."""
    lock = (work_directory / _LOCK).open("wb")
    flock(lock, LOCK_EX)
    return lock


def drop_leftovers(directory: Path) -> None:
    """Removes the work directories of runs whose broker or command was killed."""
    for path in directory.iterdir():
        with suppress(OSError), (path / _LOCK).open("rb") as lock:
            flock(lock, LOCK_EX | LOCK_NB)  # OSError: somebody has it
            shutil.rmtree(path, ignore_errors=True)


def tail_of(
    path: str | None, lines: int = TAIL_LINES, bytes_max: int = TAIL_BYTES_MAX
) -> tuple[str, ...]:
    """The last lines of a log; none if it is not there (any more)."""
    if path is None:
        return ()
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - bytes_max))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-lines:])
