"""Supervisor process of several brokers: starts and stops all, and restarts each that dies.

    python -I -S supervisor.py PLAN LOCK

PLAN is the file written by plan.py. LOCK is the descriptor that locks it as long as this process
lives. To save memory, this module imports only the standard library.

    first start of a broker fails   stop all; exit with its code, after its own error message
    broker dies                     restart it: at once, then after 1, 2, 4 … 30 s, until it has
                                    served for a minute
    SIGTERM, SIGINT, SIGHUP         stop all; exit code 0 if all stops were clean
    second signal but SIGHUP        kill all; exit code 1 (SIGTERMs within 2 s count as one)
    this process is killed          the kernel sends SIGTERM to each broker
    event loop of a broker hangs    send it SIGABRT and restart it, if there is a watchdog

A service manager (NOTIFY_SOCKET) is notified when all brokers serve and when the stop begins. This
process feeds its watchdog. The brokers notify a socket of this process instead, with the same
watchdog interval. A broker's log comes through a pipe; each line gets the broker's name appended.

While all brokers serve, a spare process waits with the broker's modules imported. Its stdin gets
the command (a line of JSON) of the next broker that dies.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from selectors import EVENT_READ, BaseSelector, DefaultSelector
from socket import (
    AF_UNIX,
    CMSG_SPACE,
    SCM_CREDENTIALS,
    SO_PASSCRED,
    SOCK_DGRAM,
    SOL_SOCKET,
    socket,
)
from struct import Struct
from time import monotonic
from types import FrameType

PR_SET_PDEATHSIG = 1
ONE_SIGTERM_S = 2.0
"""SIGTERMs within this time of the first count as one."""

DEADLINE_S = 28.0
"""Deadline of the stop; each broker's own deadline is 25 s."""

STEADY_S = 60.0
"""Serving time after which a broker that dies is restarted at once."""

PAUSE_S_MAX = 30.0
LOOK_S = 0.02
"""Interval of checks whether a starting broker serves."""

LOOK_AGAIN_S = 0.5
"""Maximum wait: on PyPy a signal can end a wait before its handler has run."""

READ_BYTES = 64 << 10  # capacity of a pipe

STDERR = 2
UCRED = Struct("iII")
"""Credentials of SO_PASSCRED: process, user and group id."""
EXTEND_EVERY_S = 10.0
EXTEND_BY_S = 30.0
DATAGRAM_BYTES_MAX = 4096
ABORTED_ON = "event loop hangs"
SPARE = "spare"  # name of the spare process in the log


@dataclass(frozen=True)
class PlannedBroker:
    """Command of a broker, and the file that it writes when it serves."""

    name: str
    command: Sequence[str]
    ready_file: str


@dataclass(frozen=True)
class MastersPlan:
    """All brokers of a plan; the supervisor writes `ready_file` when all serve."""

    instances: Sequence[PlannedBroker]
    ready_file: str | None
    log_json: bool
    monitoring: PlannedBroker | None = None
    """Monitoring process, started and restarted like a broker."""
    spare: Sequence[str] | None = None


def labelled(line: bytes, name: str) -> bytes:
    """Return a log line, plain or JSON, with the broker's name added."""
    if line.startswith(b"{") and line.endswith(b"}"):
        return b'%b, "broker": %b}' % (line[:-1], json.dumps(name).encode())
    return b"%b broker=%b" % (line, name.encode())


class SharedLog:
    """Shared log on stderr: lines of brokers, and of this process in the same form."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def write(self, data: bytes) -> None:
        """Write lines; they are lost after an error, as with one broker."""
        try:
            while data:
                data = data[os.write(STDERR, data) :]
        except OSError:
            return

    def tell(self, level: str, event: str, **fields: object) -> None:
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
        self.write(f"troupemq: {sentence}\n".encode())


class ManagerLine:
    """Notifications to the service manager, and from the brokers."""

    def __init__(self) -> None:
        name = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        for_us = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = os.environ.get("WATCHDOG_USEC", "") if name and for_us else ""
        self.watchdog_s = int(usec) / 1e6 if usec.isdecimal() else 0.0
        """Watchdog interval of this process and of each broker; 0: no watchdog."""
        self._own: socket | None = None
        self._told_s = 0.0
        self._extended_s = 0.0

    def environment(self) -> dict[str, str]:
        """Return the environment of a broker, which notifies only this process."""
        found = {name: value for name, value in os.environ.items() if name not in _MANAGERS}
        if self._own is not None:
            name = self._own.getsockname().decode().replace("\0", "@", 1)
            found |= {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": str(int(self.watchdog_s * 1e6))}
        return found

    def listen(self, selector: BaseSelector, heard: Callable[[int], None]) -> None:
        """Receive watchdog notifications; `heard` gets the sender's process id."""
        if not self.watchdog_s:
            return
        self._own = own = socket(AF_UNIX, SOCK_DGRAM)
        own.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
        own.setblocking(False)
        own.bind(f"\0troupemq-masters-{os.getpid()}")

        def read() -> None:
            with suppress(BlockingIOError):
                while True:
                    data, notes, _, _ = own.recvmsg(DATAGRAM_BYTES_MAX, CMSG_SPACE(UCRED.size))
                    if b"WATCHDOG=1" in data.split(b"\n"):
                        for _, kind, value in notes:
                            if kind == SCM_CREDENTIALS:
                                heard(UCRED.unpack_from(value)[0])

        selector.register(own, EVENT_READ, read)

    def tell(self, text: str) -> None:
        """Notify the service manager; errors are ignored, because it must not stop the brokers."""
        if self._address:
            with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto(text.encode(), self._address)

    def extend(self) -> None:
        """Extend the start's timeout, because a broker may recover a large store."""
        if self._address and monotonic() - self._extended_s >= EXTEND_EVERY_S:
            self._extended_s = monotonic()
            self.tell(f"EXTEND_TIMEOUT_USEC={EXTEND_BY_S * 1e6:.0f}")

    def feed(self) -> float | None:
        """Notify the watchdog if due; return the next due time, None without a watchdog."""
        if not self.watchdog_s:
            return None
        if monotonic() - self._told_s >= self.watchdog_s / 2:
            self._told_s = monotonic()
            self.tell("WATCHDOG=1")
        return self._told_s + self.watchdog_s / 2


_MANAGERS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def pause_s(deaths: int) -> float:
    """Return the pause before the restart of a broker after so many deaths."""
    return 0.0 if deaths == 1 else min(2.0 ** (deaths - 2), PAUSE_S_MAX)


class LoggedProcess:
    """Child process with its log lines passed to the shared log under its name."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        prepare: Callable[[], None],
        log: SharedLog,
        selector: BaseSelector,
        *,
        waits: bool = False,
    ) -> None:
        """Start the process, after `prepare` in it; `waits`: for `become`. Raises OSError."""
        self.name = name
        self._log = log
        self._selector = selector
        self._unfinished = b""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the supervisor
            preexec_fn=prepare,
            env=environment,
        )
        assert self._process.stderr is not None
        self._log_end: int | None = self._process.stderr.fileno()
        os.set_blocking(self._log_end, False)
        selector.register(self._log_end, EVENT_READ, self._pass_on_log)

    @property
    def pid(self) -> int:
        return self._process.pid

    def become(self, name: str, command: Sequence[str]) -> None:
        """Send a spare its command. Raises OSError if it has ended."""
        assert self._process.stdin is not None
        self.name = name
        with self._process.stdin as pipe:
            pipe.write(json.dumps(command).encode() + b"\n")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def take_end(self) -> int | None:
        """Return the exit code of a process that has ended, after the rest of its log."""
        if (code := self._process.poll()) is None:
            return None
        self._pass_on_log()
        self._close_log()  # a grandchild may hold the pipe open
        if self._unfinished:
            self._write_lines(b"\n")
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return code

    def _pass_on_log(self) -> None:
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


class BrokerProcess:
    """Broker with its process, across restarts."""

    def __init__(self, instance: PlannedBroker) -> None:
        self.name = instance.name
        self.command = instance.command
        self.ports: dict[str, int] = {}
        self.has_served = False
        self.start_at_s: float | None = None
        """Time of the next restart; None while it runs or must not restart."""
        self.ended_at_s: float | None = None
        self._ready_file = instance.ready_file
        self._deaths = 0
        """Number of deaths since it last served for STEADY_S."""
        self._process: LoggedProcess | None = None
        self._served_since_s: float | None = None
        self.well_at_s = 0.0
        """Time of its last watchdog notification, or of the begin of serving."""

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def serves(self) -> bool:
        return self._served_since_s is not None

    def start(self, process: Callable[[], LoggedProcess]) -> None:
        """Start in the process that `process` returns. Raises OSError."""
        self.start_at_s = None
        with suppress(FileNotFoundError), open(self._ready_file, "r+b") as file:
            file.write(b" " * os.stat(file.fileno()).st_size)  # its space serves on a full disk
        self._process = process()

    def look_whether_it_serves(self) -> bool:
        """Read its ready file; return True once, when it begins to serve."""
        if self._served_since_s is not None:
            return False
        try:
            with open(self._ready_file, encoding="utf-8") as file:
                ports = json.load(file)
        except (OSError, ValueError):
            return False
        if ports.pop("pid") != self.pid:
            return False
        self.ports, self.has_served, self._served_since_s = ports, True, monotonic()
        self.well_at_s = self._served_since_s
        return True

    def take_end(self) -> int | None:
        """Forget a process that has ended and return its exit code; None while it runs."""
        if self._process is None or (code := self._process.take_end()) is None:
            return None
        self._process = None
        return code

    def start_later(self) -> float:
        """Schedule the restart after a death; return the pause in seconds."""
        now_s = monotonic()
        if self._served_since_s is not None and now_s - self._served_since_s >= STEADY_S:
            self._deaths = 0
        self._deaths += 1
        self._served_since_s = None
        self.ended_at_s, self.start_at_s = now_s, now_s + pause_s(self._deaths)
        return pause_s(self._deaths)

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)


class BrokerSupervisor:
    """Supervisor of a plan's brokers; one thread that waits for signals and log lines."""

    def __init__(self, plan: MastersPlan, log: SharedLog) -> None:
        self._plan = plan
        self._log = log
        self._selector = DefaultSelector()
        planned = [*plan.instances, *([] if plan.monitoring is None else [plan.monitoring])]
        self._brokers = [BrokerProcess(each) for each in planned]
        self._masters = self._brokers[: len(plan.instances)]
        self._manager = ManagerLine()
        self._signals: list[tuple[int, float]] = []
        self._first_signal: tuple[int, float] | None = None
        self._stop_until_s: float | None = None
        """Deadline of the stop; None before it."""
        self._code = 0
        self._all_have_served = False
        self._spare: LoggedProcess | None = None
        self._parent = os.getpid()
        self._prctl = ctypes.CDLL(None).prctl

    def run(self) -> int:
        """Run until all brokers have ended; return the exit code."""
        self._listen_to_signals()
        self._manager.listen(self._selector, self._on_well)
        for broker in self._brokers:
            self._start(broker)
        while any(broker.runs for broker in self._brokers) or self._stop_until_s is None:
            for key, _ in self._selector.select(self._pause_s()):
                key.data()
            self._obey_signals()
            self._look_after_brokers()
            self._watch()
        if self._plan.ready_file is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._plan.ready_file)
        return self._code

    def _listen_to_signals(self) -> None:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(reading, EVENT_READ, lambda: os.read(reading, READ_BYTES))
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._signals.append((number, monotonic()))

    def _obey_signals(self) -> None:
        while self._signals:
            found = self._signals.pop(0)
            if self._first_signal is None or self._first_signal[0] == signal.SIGHUP:
                self._first_signal = found
                if self._stop_until_s is None:
                    self._log.tell("info", "stop requested", signal=signal.Signals(found[0]).name)
                    self._stop(0)
            elif not self._is_repeated(found):
                self._kill("Received a second signal.")

    def _is_repeated(self, found: tuple[int, float]) -> bool:
        assert self._first_signal is not None
        (number, at_s), (first, first_at_s) = found, self._first_signal
        if number == signal.SIGHUP:
            return True
        return number == first == signal.SIGTERM and at_s - first_at_s < ONE_SIGTERM_S

    def _on_well(self, pid: int) -> None:
        for broker in self._brokers:
            if broker.runs and broker.pid == pid:
                broker.well_at_s = monotonic()

    def _watch(self) -> None:
        """Feed the service manager's watchdog, and check that of the brokers."""
        self._manager.feed()
        if not self._all_have_served and self._stop_until_s is None:
            self._manager.extend()
        limit_s = self._manager.watchdog_s
        for broker in self._brokers if limit_s and self._stop_until_s is None else ():
            if broker.serves and broker.runs and monotonic() - broker.well_at_s > limit_s:
                self._log.tell("error", "broker aborted", why=ABORTED_ON, broker=broker.name)
                broker.well_at_s = monotonic()
                broker.signal(signal.SIGABRT)

    def _pause_s(self) -> float:
        now_s = monotonic()
        moments = [each.start_at_s for each in self._brokers if each.start_at_s is not None]
        if (feed_at_s := self._manager.feed()) is not None:
            moments.append(feed_at_s)
        if self._stop_until_s is not None:
            moments.append(self._stop_until_s)
        elif any(each.runs and not each.serves for each in self._brokers):
            moments.append(now_s + LOOK_S)
        return max(0.0, min([*moments, now_s + LOOK_AGAIN_S]) - now_s)

    def _look_after_brokers(self) -> None:
        for broker in self._brokers:
            if (code := broker.take_end()) is not None:
                self._on_end(broker, code)
        if self._spare is not None and self._spare.take_end() is not None:
            self._spare = None  # retried after the next restart, lest it fail in a loop
            if self._stop_until_s is None:
                self._log.tell("warning", "spare process ended")
        if self._stop_until_s is not None:
            if monotonic() >= self._stop_until_s:
                self._kill(f"Stop timed out after {DEADLINE_S:.0f} s.")
            return
        for broker in self._brokers:
            if broker.start_at_s is not None and monotonic() >= broker.start_at_s:
                self._start(broker)
            elif broker.runs and broker.look_whether_it_serves():
                self._on_serving(broker)

    def _start(self, broker: BrokerProcess) -> None:
        try:
            broker.start(partial(self._process_for, broker))
        except OSError as error:
            self._log.say(f"Cannot start {broker.name}: {error.strerror}.")
            self._on_failed_start(broker)

    def _process_for(self, broker: BrokerProcess) -> LoggedProcess:
        """Return the spare process, else a new one. Raises OSError."""
        if self._spare is not None:
            spare, self._spare = self._spare, None
            with suppress(BrokenPipeError):  # the spare has just ended
                spare.become(broker.name, broker.command)
                return spare
        return self._new_process(broker.name, broker.command)

    def _new_process(
        self, name: str, command: Sequence[str], *, waits: bool = False
    ) -> LoggedProcess:
        kind = self._manager.environment(), self._end_with_the_supervisor
        return LoggedProcess(name, command, *kind, self._log, self._selector, waits=waits)

    def _end_with_the_supervisor(self) -> None:
        """Let the kernel send SIGTERM at the supervisor's death; runs in the new process."""
        self._prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != self._parent:
            os._exit(1)  # the supervisor died before the call

    def _on_failed_start(
        self, broker: BrokerProcess, how: str = "no process", code: int = 1
    ) -> None:
        """Stop all after a failed first start, which an operator must fix; retry a later one."""
        if broker.has_served:
            self._start_later(broker, how)
        else:
            self._stop(code)

    def _on_end(self, broker: BrokerProcess, code: int) -> None:
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        if self._stop_until_s is not None:
            # A starting broker does not handle SIGTERM yet, and a restart may fail.
            is_starting = not broker.serves and (broker.has_served or code == -signal.SIGTERM)
            self._code = self._code or int(code != 0 and not is_starting)
        elif code > 0:
            self._on_failed_start(broker, how, code)
        else:
            self._start_later(broker, how)

    def _start_later(self, broker: BrokerProcess, how: str) -> None:
        pause_s = broker.start_later()
        again = {"again_in_s": int(pause_s), "broker": broker.name}
        self._log.tell("warning", "broker ended", how=how, **again)

    def _on_serving(self, broker: BrokerProcess) -> None:
        if broker.ended_at_s is not None:
            after_ms = round((monotonic() - broker.ended_at_s) * 1000)
            self._log.tell("info", "broker restarted", after_ms=after_ms, broker=broker.name)
        if not all(each.serves for each in self._brokers):
            return
        is_first, self._all_have_served = not self._all_have_served, True
        if is_first:
            self._log.tell("info", "all brokers started", count=len(self._masters), pid=os.getpid())
            self._manager.tell(f"READY=1\nSTATUS=Serving; {len(self._masters)} brokers.")
        self._write_ready_file(is_first=is_first)
        if self._plan.spare is not None and self._spare is None:
            with suppress(OSError):  # the next restart then starts a new process
                self._spare = self._new_process(SPARE, self._plan.spare, waits=True)

    def _stop(self, code: int) -> None:
        if self._stop_until_s is not None:
            return
        self._manager.tell("STOPPING=1\nSTATUS=Stopping.")
        self._code, self._stop_until_s = code, monotonic() + DEADLINE_S
        for broker in self._brokers:
            broker.start_at_s = None
            broker.signal(signal.SIGTERM)
        if self._spare is not None:
            self._spare.signal(signal.SIGKILL)  # it has no state

    def _kill(self, why: str) -> None:
        self._log.say(f"{why} The next start recovers the stores.")
        self._code, self._stop_until_s = 1, monotonic() + DEADLINE_S
        for broker in self._brokers:
            broker.signal(signal.SIGKILL)

    def _write_ready_file(self, *, is_first: bool) -> None:
        """Write the ready file; a failure stops all at the start, but not after a restart."""
        if (path := self._plan.ready_file) is None:
            return
        masters = [{"name": each.name, "pid": each.pid, **each.ports} for each in self._masters]
        found = {"pid": os.getpid(), **self._masters[0].ports, "masters": masters}
        for beside in self._brokers[len(self._masters) :]:
            found |= beside.ports
        try:
            with open(f"{path}.tmp", "w", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            os.replace(f"{path}.tmp", path)
        except OSError as error:
            old = "" if is_first else " It names the process before the restart."
            self._log.say(f"Cannot write the ready file {path}: {error.strerror}.{old}")
            if is_first:
                self._stop(1)


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        found = json.load(file)
    instances = [PlannedBroker(**each) for each in found.pop("instances")]
    if (beside := found.pop("monitoring", None)) is not None:
        found["monitoring"] = PlannedBroker(**beside)
    plan = MastersPlan(instances, **found)
    code = BrokerSupervisor(plan, SharedLog(as_json=plan.log_json)).run()
    with suppress(OSError):  # a closed terminal, or a full disk
        os.write(1, b"Stopped.\n" * (code == 0))
    return code


if __name__ == "__main__":
    sys.exit(main())
