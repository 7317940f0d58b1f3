"""Processor time of a process of ours by function, and by system call with perf.

The process samples itself (sampler.c, which needs a C compiler and Python's headers). After each
few milliseconds of processor time, a signal records the running function, and whether it is in the
kernel. Waiting and other processes are therefore excluded. perf, if installed, gives the kernel's
share and its time by system call. The signals come at kernel ticks, which miss much of the kernel's
work when a process sleeps or wakes.
"""

import ctypes
import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final

SOURCE: Final = Path(__file__).with_name("sampler.c")
RECORDS: Final = 4096
RECORD: Final = Struct("=QQQ104s128s")
INTERVAL_US: Final = 1000
"""Sampling interval, or that of the kernel's timers if that is longer: mostly 250 a second."""
PERF_RATE_HZ: Final = 1999
USER: Final = "user mode"
_SYSTEM_CALL = re.compile(r" (?:__x64_sys_|__do_sys_|__se_sys_|__sys_|ksys_)([a-z]\w+)")
_PLACES = (
    (re.compile("page_fault"), "page faults"),
    (re.compile("sysvec|_interrupt|softirq"), "interrupts"),
    (re.compile("do_syscall_64|syscall_"), "ways in and out"),
)


def build(folder: Path) -> Path:
    """The compiled sampler. Raises CalledProcessError, or FileNotFoundError without a compiler."""
    library = folder / "sampler.so"
    include = sysconfig.get_path("include")
    command = ["cc", "-O2", "-shared", "-fPIC", f"-I{include}", str(SOURCE), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


def sample_into(path: Path, library: Path) -> None:
    """This process samples itself from now on."""
    path.write_bytes(bytes(RECORDS * RECORD.size))
    with path.open("r+b") as file:
        if ctypes.PyDLL(str(library)).sample_into(file.fileno(), ctypes.c_long(INTERVAL_US)):
            raise OSError("no samples here")


@dataclass
class Samples:
    """Samples by function: in user mode, in the kernel, and those of what it calls included."""

    user: Counter[str] = field(default_factory=Counter)
    kernel: Counter[str] = field(default_factory=Counter)
    whole: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    """perf's samples: by system call, what else the kernel did, and USER."""

    @classmethod
    def read(cls, path: Path) -> "Samples":
        """Return the samples so far."""
        found = cls()
        for user, kernel, whole, name, file in RECORD.iter_unpack(path.read_bytes()):
            if whole:
                parts = file.rstrip(b"\0").decode().split("/")
                key = f"`{name.rstrip(bytes(1)).decode()}` {'/'.join(parts[-3:])}"
                found.user[key.replace(".<locals>", "")] += user
                found.kernel[key.replace(".<locals>", "")] += kernel
                found.whole[key.replace(".<locals>", "")] += whole
        return found

    def since(self, before: "Samples") -> "Samples":
        return Samples(
            self.user - before.user,
            self.kernel - before.kernel,
            self.whole - before.whole,
            self.calls,
        )


class Perf:
    """The kernel's time by system call; nothing where perf is not at hand. A probe of loads.py."""

    def __init__(self, pid: int, scratch: Path) -> None:
        self._pid, self._path = str(pid), scratch / "recorded"
        self._running: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        if perf := shutil.which("perf"):
            clock = ["-e", "cpu-clock", "-F", str(PERF_RATE_HZ), "-g", "-o", str(self._path)]
            silent = subprocess.DEVNULL
            self._running = subprocess.Popen(
                [perf, "record", *clock, "-p", self._pid], stdout=silent, stderr=silent
            )

    def end(self) -> None:
        if self._running is not None:
            self._running.terminate()
            self._running.wait()

    def calls(self) -> Counter[str]:
        """Samples, those outside the kernel under USER."""
        return Counter(_place(stack) if "[kernel" in stack[0] else USER for stack in self._stacks())

    def _stacks(self) -> Iterator[list[str]]:
        if not self._path.exists():
            return
        command = ["perf", "script", "-i", str(self._path), "-F", "ip,sym,dso"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for block in done.stdout.split("\n\n"):
            if lines := block.strip().splitlines():
                yield lines


def _place(stack: list[str]) -> str:
    for line in reversed(stack):
        if call := _SYSTEM_CALL.search(line):
            return call[1]
    for pattern, name in _PLACES:
        if any(pattern.search(line) for line in stack):
            return name
    return "what is left"
