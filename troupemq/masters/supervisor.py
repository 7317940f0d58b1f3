"""The process above several brokers: it starts them, starts each again that dies, and stops all.

    python -I -S supervisor.py PLAN LOCK

PLAN is the file that plan.py has written, LOCK the descriptor by which it is locked for as long as
this process lives. Of ours nothing is imported: what every broker needs is in the brokers.

    a broker's first start fails   all are stopped, exit code 1; its own sentence says why
    a broker dies                  it alone is started again: at once, then after 1, 2, 4 … 30 s,
                                   until it has served for a minute
    SIGTERM, SIGINT                all are stopped in order; exit code 0 if all were
    a second one                   all are killed, exit code 1; SIGTERMs within 2 s are one
    this process is killed         each broker gets a SIGTERM from the kernel

A broker's log comes through a pipe, for each line of it names its broker at the end.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from selectors import EVENT_READ, BaseSelector, DefaultSelector
from time import monotonic
from types import FrameType

PR_SET_PDEATHSIG = 1
ONE_SIGTERM_S = 2.0
"""SIGTERMs that come before that time has passed since the first are the same one."""

DEADLINE_S = 28.0
"""For the stop of all: each broker ends by itself after 25 s."""

STEADY_S = 60.0
"""A broker that has served for so long and dies is started again at once."""

PAUSE_S_MAX = 30.0
LOOK_S = 0.02
"""How often to look whether a broker that starts is ready."""

READ_BYTES = 64 << 10
"""As much as a pipe holds."""

STDERR = 2


@dataclass(frozen=True)
class PlannedBroker:
    """One broker: the command that runs it, and the file that it writes when it serves."""

    name: str
    command: Sequence[str]
    ready_file: str


@dataclass(frozen=True)
class MastersPlan:
    """All of them; `ready_file` is written when all serve."""

    instances: Sequence[PlannedBroker]
    ready_file: str | None
    log_json: bool


def labelled(line: bytes, name: str) -> bytes:
    """A line of a broker's log, plain or JSON, that says whose it is."""
    if line.startswith(b"{") and line.endswith(b"}"):
        return b'%b, "broker": %b}' % (line[:-1], json.dumps(name).encode())
    return b"%b broker=%b" % (line, name.encode())


class SharedLog:
    """The log of all: lines of brokers, and those of this process in the same form."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def write(self, data: bytes) -> None:
        """What cannot be written is lost, as with one broker."""
        try:
            while data:
                data = data[os.write(STDERR, data) :]
        except OSError:
            return

    def tell(self, level: str, event: str, **fields: object) -> None:
        """A line of ours."""
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        if self._as_json:
            text = json.dumps({"event": event, **fields, "level": level, "timestamp": now})
        else:
            texts = ((name, str(value)) for name, value in fields.items())
            words = (
                f"{name}={text!r}" if " " in text else f"{name}={text}" for name, text in texts
            )
            text = " ".join((f"{now[:-4]}Z {level:7} {event}", *words))
        self.write(text.encode() + b"\n")

    def say(self, sentence: str) -> None:
        """One line for the operator."""
        self.write(f"troupemq: {sentence}\n".encode())


def pause_s(deaths: int) -> float:
    """How long to wait before a broker is started again that has died so often."""
    return 0.0 if deaths == 1 else min(2.0 ** (deaths - 2), PAUSE_S_MAX)


class BrokerProcess:
    """One broker's process, from its start to its end, and to the next one's."""

    def __init__(self, instance: PlannedBroker, log: SharedLog, selector: BaseSelector) -> None:
        self.name = instance.name
        self.ports: dict[str, int] = {}
        self.has_served = False
        self.start_at_s: float | None = None
        """When to start it again; None while it runs, and once it is not to."""
        self.ended_at_s: float | None = None
        """When the one before died."""
        self._instance = instance
        self._log = log
        self._selector = selector
        self._deaths = 0
        """Since it last served for long."""
        self._process: subprocess.Popen[bytes] | None = None
        self._log_end: int | None = None
        """Where its log is read."""
        self._served_since_s: float | None = None
        self._unfinished = b""

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def serves(self) -> bool:
        return self._served_since_s is not None

    def start(self, prepare: Callable[[], None]) -> None:
        """`prepare` is called in the new process. Raises OSError if there can be none."""
        self.start_at_s = None
        with suppress(FileNotFoundError):
            os.unlink(self._instance.ready_file)
        self._process = subprocess.Popen(
            self._instance.command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the supervisor
            preexec_fn=prepare,
        )
        assert self._process.stderr is not None
        self._log_end = self._process.stderr.fileno()
        os.set_blocking(self._log_end, False)
        self._selector.register(self._log_end, EVENT_READ, self.pass_on_log)

    def pass_on_log(self) -> None:
        """What there is of its log goes to that of all."""
        if self._log_end is None:
            return
        try:
            data = os.read(self._log_end, READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._write_lines(data)
        else:
            self._close_log()

    def _close_log(self) -> None:
        if self._log_end is not None:
            self._selector.unregister(self._log_end)
            self._log_end = None

    def _write_lines(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > READ_BYTES:
            lines.append(self._unfinished)
            self._unfinished = b""
        self._log.write(b"".join(labelled(line, self.name) + b"\n" for line in lines))

    def look_whether_it_serves(self) -> bool:
        """Whether it serves since this moment."""
        if self._served_since_s is not None:
            return False
        try:
            with open(self._instance.ready_file, encoding="utf-8") as file:
                ports = json.load(file)
        except (FileNotFoundError, ValueError):
            return False
        if ports.pop("pid") != self.pid:
            return False
        self.ports, self.has_served, self._served_since_s = ports, True, monotonic()
        return True

    def take_end(self) -> int | None:
        """The exit code of a process that has ended, which then is there no more."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self.pass_on_log()
        self._close_log()  # a child of its own may hold the pipe open
        if self._unfinished:
            self._write_lines(b"\n")
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process = None
        return code

    def start_later(self) -> float:
        """Says when, in how many seconds, after it has died."""
        now_s = monotonic()
        if self._served_since_s is not None and now_s - self._served_since_s >= STEADY_S:
            self._deaths = 0
        self._deaths += 1
        self._served_since_s = None
        self.ended_at_s, self.start_at_s = now_s, now_s + pause_s(self._deaths)
        return pause_s(self._deaths)

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)


class BrokerSupervisor:
    """The brokers of a plan; one thread, which waits for signals and for their logs."""

    def __init__(self, plan: MastersPlan, log: SharedLog) -> None:
        self._plan = plan
        self._log = log
        self._selector = DefaultSelector()
        self._brokers = [BrokerProcess(each, log, self._selector) for each in plan.instances]
        self._signals: list[tuple[int, float]] = []
        self._first_signal: tuple[int, float] | None = None
        self._stop_until_s: float | None = None
        """Once all are being stopped."""
        self._code = 0
        self._all_have_served = False
        self._parent = os.getpid()
        self._prctl = ctypes.CDLL(None).prctl

    def run(self) -> int:
        """Until all have ended; gives the exit code."""
        self._listen_to_signals()
        for broker in self._brokers:
            self._start(broker)
        while any(broker.runs for broker in self._brokers) or self._stop_until_s is None:
            for key, _ in self._selector.select(self._pause_s()):
                key.data()
            self._obey_signals()
            self._look_after_brokers()
        if self._plan.ready_file is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._plan.ready_file)
        return self._code

    def _listen_to_signals(self) -> None:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        self._selector.register(reading, EVENT_READ, lambda: os.read(reading, READ_BYTES))
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._signals.append((number, monotonic()))

    def _obey_signals(self) -> None:
        while self._signals:
            found = self._signals.pop(0)
            if self._first_signal is None:
                self._first_signal = found
                if self._stop_until_s is None:
                    self._log.tell("info", "stopping", signal=signal.Signals(found[0]).name)
                    self._stop(0)
            elif not self._is_repeated(found):
                self._kill("Told twice to stop.")

    def _is_repeated(self, found: tuple[int, float]) -> bool:
        assert self._first_signal is not None
        (number, at_s), (first, first_at_s) = found, self._first_signal
        return number == first == signal.SIGTERM and at_s - first_at_s < ONE_SIGTERM_S

    def _pause_s(self) -> float | None:
        now_s = monotonic()
        moments = [each.start_at_s for each in self._brokers if each.start_at_s is not None]
        if self._stop_until_s is not None:
            moments.append(self._stop_until_s)
        elif any(each.runs and not each.serves for each in self._brokers):
            moments.append(now_s + LOOK_S)
        return max(0.0, min(moments) - now_s) if moments else None

    def _look_after_brokers(self) -> None:
        for broker in self._brokers:
            if (code := broker.take_end()) is not None:
                self._on_end(broker, code)
        if self._stop_until_s is not None:
            if monotonic() >= self._stop_until_s:
                self._kill(f"Not stopped after {DEADLINE_S:.0f} s.")
            return
        for broker in self._brokers:
            if broker.start_at_s is not None and monotonic() >= broker.start_at_s:
                self._start(broker)
            elif broker.runs and broker.look_whether_it_serves():
                self._on_serving(broker)

    def _start(self, broker: BrokerProcess) -> None:
        try:
            broker.start(self._end_with_the_supervisor)
        except OSError as error:
            self._log.say(f"Cannot start {broker.name}: {error.strerror}.")
            self._on_failed_start(broker)

    def _end_with_the_supervisor(self) -> None:
        """In the new process, before it is a broker."""
        self._prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != self._parent:
            os._exit(1)  # it was killed before

    def _on_failed_start(self, broker: BrokerProcess, how: str = "no process") -> None:
        """What is wrong with a first start somebody has to mend; a later one is tried again."""
        if broker.has_served:
            self._start_later(broker, how)
        else:
            self._stop(1)

    def _on_end(self, broker: BrokerProcess, code: int) -> None:
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        if self._stop_until_s is not None:
            # A start does not handle SIGTERM yet, and one that is tried again may fail once more.
            is_starting = not broker.serves and (broker.has_served or code == -signal.SIGTERM)
            self._code = self._code or int(code != 0 and not is_starting)
        elif code > 0:
            self._on_failed_start(broker, how)
        else:
            self._start_later(broker, how)

    def _start_later(self, broker: BrokerProcess, how: str) -> None:
        pause_s = broker.start_later()
        again = {"again_in_s": int(pause_s), "broker": broker.name}
        self._log.tell("warning", "broker ended", how=how, **again)

    def _on_serving(self, broker: BrokerProcess) -> None:
        if broker.ended_at_s is not None:
            after_ms = round((monotonic() - broker.ended_at_s) * 1000)
            self._log.tell("info", "broker serves again", after_ms=after_ms, broker=broker.name)
        if not all(each.serves for each in self._brokers):
            return
        if not self._all_have_served:
            self._all_have_served = True
            self._log.tell("info", "all brokers serve", count=len(self._brokers), pid=os.getpid())
        self._write_ready_file()

    def _stop(self, code: int) -> None:
        if self._stop_until_s is not None:
            return
        self._code, self._stop_until_s = code, monotonic() + DEADLINE_S
        for broker in self._brokers:
            broker.start_at_s = None
            broker.signal(signal.SIGTERM)

    def _kill(self, why: str) -> None:
        self._log.say(f"{why} What was not flushed will be recovered at the next start.")
        self._code, self._stop_until_s = 1, monotonic() + DEADLINE_S
        for broker in self._brokers:
            broker.signal(signal.SIGKILL)

    def _write_ready_file(self) -> None:
        if (path := self._plan.ready_file) is None:
            return
        masters = [{"name": each.name, "pid": each.pid, **each.ports} for each in self._brokers]
        found = {"pid": os.getpid(), **self._brokers[0].ports, "masters": masters}
        try:
            with open(f"{path}.tmp", "w", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            os.replace(f"{path}.tmp", path)
        except OSError as error:
            self._log.say(f"Cannot write the ready file {path}: {error.strerror}.")
            self._stop(1)


def main() -> int:
    """The process."""
    with open(sys.argv[1], encoding="utf-8") as file:
        found = json.load(file)
    plan = MastersPlan([PlannedBroker(**each) for each in found.pop("instances")], **found)
    return BrokerSupervisor(plan, SharedLog(as_json=plan.log_json)).run()


if __name__ == "__main__":
    sys.exit(main())
