"""Resources that a process has used so far, read from /proc.

CPU time counts all of its threads, in ticks of 10 ms, which suits periods of seconds. The
scheduler's own count is finer and omits ended threads.
"""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USER_TIME = 11  # fields of /proc/<pid>/stat behind the name, which may hold blanks
_SYSTEM_TIME = 12
_ENDED_CHILDREN_TIMES = (13, 14)
_PARENT = 1
_IDLE_TIMES = (3, 4)  # fields of the first line of /proc/stat: idle, and waiting for the disk
_STOLEN_TIME = 7  # the first one that is not this machine's


@dataclass(frozen=True)
class Memory:
    """Resident memory; `anonymous_kib` leaves out mapped files, which are page cache."""

    resident_kib: int
    anonymous_kib: int


def cpu_seconds(pid: int) -> float:
    """User and system time of the process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])) / _TICKS_PER_S


def context_switches(pid: int) -> int:
    """Return the number of context switches of the process's threads."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        count += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return count


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU time of the process and its descendants, ended children included."""
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
    below = {pid}
    while more := {n for n, fields in stats.items() if int(fields[_PARENT]) in below} - below:
        below |= more
    times = (_USER_TIME, _SYSTEM_TIME, *_ENDED_CHILDREN_TIMES)
    ticks = sum(int(stats[one][time]) for one in below if one in stats for time in times)
    return ticks / _TICKS_PER_S


def scheduled_us(pid: int) -> float:
    """Processor time, kernel included, of the threads that the process has, in µs."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000


def machine_cpu_seconds() -> float:
    """Time that all processors together were busy until now, the kernel's own threads included."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    busy = [int(field) for n, field in enumerate(fields[:_STOLEN_TIME]) if n not in _IDLE_TIMES]
    return sum(busy) / _TICKS_PER_S


def memory(pid: int) -> Memory:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    return Memory(int(status["VmRSS"].split()[0]), int(status["RssAnon"].split()[0]))


def failures_told(log: Path) -> str:
    """Return the client's lines about failed sends (Window.java)."""
    lines = log.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith(("failed: ", "  because of ")))


def last_words(log: Path) -> str:
    """The end of what a client's process said: one without a broker says the same for minutes."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-50:])
