"""Thread stacks of a member, and what its workers are busy with.

A member of TroupeMQ's or Java's client sends a text with a block per thread. Its first line has the
thread's name, id and state. The others have the name and one call each, the innermost first:

    troupemq-consume-billing-0               TID: 139820 STATE: RUNNABLE
    troupemq-consume-billing-0               slow(/srv/shop/incident.py:8)

Workers are the threads that call the group's listener. A worker is busy while such a call is in
its stack. Calls of libraries are folded, because the cause is in the code that made them.

Source: common/UtilAll.java (jstack), ConsumeMessageConcurrentlyService.java,
ConsumeMessageOrderlyService.java.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from protocol.java_numbers import plain_number
from troupemq.client.admin.answers import Result
from troupemq.client.admin.base import INT_MAX

TEXT_CHARS_MAX = 4 << 20
"""Limit of the text that is read; the rest is left out."""
THREADS_MAX = 2000
FRAMES_MAX = 500
PLACES_NAMED_MAX = 3

_ID = "TID: "
_WORKER, _JAVA_WORKER = "troupemq-consume-", "ConsumeMessageThread_"
_JAVA_GROUP_CHARS_MAX = 100
"""Java's client cuts longer names of groups in the names of its threads."""
_LISTENER_CALLS = (
    "call_listener",
    "ConsumeMessageConcurrentlyService$ConsumeRequest.run",
    "ConsumeMessageOrderlyService$ConsumeRequest.run",
)
"""Ends of the functions that call the listener, which is the next inner call."""
_JAVA_LIBRARIES = ("org.apache.rocketmq.", "java.", "javax.", "jdk.", "sun.", "com.sun.")
_PYTHON_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "/lib/pypy",
    "/troupemq/client/connection/",
    "/troupemq/client/consuming/",
    "/troupemq/client/span_making.py",
    "<frozen ",
)


@dataclass(frozen=True, slots=True)
class StackFrame(Result):
    """One call: its function, file and line."""

    function: str
    file: str
    line: int | None
    is_library: bool

    def __str__(self) -> str:
        """Return the call in short: `slow(), incident.py:8`."""
        file = self.file.replace("\\", "/").rpartition("/")[2]
        at = "" if self.line is None else f":{self.line}"
        return f"{self.function.rpartition('.')[2]}(), {file}{at}"


@dataclass(frozen=True, slots=True)
class ThreadStack(Result):
    """A thread and its calls, the innermost first."""

    name: str
    is_worker: bool
    is_busy: bool
    """Whether a listener call is in the stack of a worker; False for other threads."""
    frames: tuple[StackFrame, ...]

    @property
    def listener_frames(self) -> tuple[StackFrame, ...]:
        """The calls from the innermost to the listener's own; empty for an idle worker."""
        ends = (n for n, each in enumerate(self.frames) if _calls_listener(each.function))
        return self.frames[: next(ends, 0)] if self.is_busy else ()

    @property
    def place(self) -> StackFrame | None:
        """The innermost call of the listener's code; None for an idle worker."""
        called = self.listener_frames
        own = (each for each in called if not each.is_library)
        return next(own, called[-1] if called else None)

    def folded(self) -> list[str]:
        """Return a line for each call, and one for each run of calls of libraries."""
        lines: list[str] = []
        count = 0
        for each in self.frames:
            if each.is_library:
                count += 1
            else:
                lines += _folded(count)
                lines.append(str(each))
                count = 0
        return lines + _folded(count)


def _folded(count: int) -> list[str]:
    return [f"… {count} library call{'' if count == 1 else 's'}"] if count else []


def stacks_of(text: object, group: str) -> tuple[ThreadStack, ...]:
    """Return the threads in a member's text: busy workers of `group`, idle ones, then others.

    Any value is accepted; what has another form is left out.
    """
    if not isinstance(text, str):
        return ()
    found = [_stack(name, calls, group) for name, calls in _threads(text[:TEXT_CHARS_MAX])]
    return tuple(sorted(found, key=lambda each: (not each.is_busy, not each.is_worker)))


def _threads(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the calls of each block."""
    count, name = 0, ""
    calls: list[str] = []
    for line in [*text.splitlines(), ""]:
        if not line.strip():
            if name:
                yield name, calls
                count += 1
            if count == THREADS_MAX:
                return
            name, calls = "", []
        elif not name:
            name = line.rpartition(_ID)[0].rstrip()
        elif line.startswith(name) and len(calls) < FRAMES_MAX:
            calls.append(line[len(name) :].strip())


def _stack(name: str, calls: Sequence[str], group: str) -> ThreadStack:
    frames = tuple(_frame(call) for call in calls if "(" in call)
    is_worker = _is_worker(name, group)
    is_busy = is_worker and any(_calls_listener(each.function) for each in frames)
    return ThreadStack(name, is_worker, is_busy, frames)


def _is_worker(name: str, group: str) -> bool:
    """Return whether a thread calls the group's listener; older clients do not name the group."""
    if name.startswith(_WORKER):
        return name.removeprefix(_WORKER).rpartition("-")[0] in ("", group)
    of = name.removeprefix(_JAVA_WORKER).rpartition("_")[0]
    return name.startswith(_JAVA_WORKER) and of in ("", group[:_JAVA_GROUP_CHARS_MAX])


def _frame(call: str) -> StackFrame:
    function, _, place = call.partition("(")
    place = place.removesuffix(")")
    file, _, number = place.rpartition(":")
    line = plain_number(number, INT_MAX)
    if line is None:
        file = place
    is_java = "." in function
    function = function.rpartition("/")[2]  # Java names its module first
    if is_java:
        is_library = function.startswith(_JAVA_LIBRARIES)
    else:
        path = file.replace("\\", "/")
        is_library = any(each in path for each in _PYTHON_LIBRARIES)
    return StackFrame(function, file, line, is_library)


def _calls_listener(function: str) -> bool:
    return function.endswith(_LISTENER_CALLS)


def busy_sentence(stacks: Sequence[ThreadStack]) -> str:
    """Return what the workers do: `2 of 2 threads busy in slow(), incident.py:8`."""
    workers = [each for each in stacks if each.is_worker]
    busy = [each for each in workers if each.is_busy]
    if not workers:
        return "its threads are unknown"
    count = f"{len(busy)} of {len(workers)} threads busy"
    places = Counter(str(each.place or "its listener") for each in busy)
    if len(places) <= 1:
        return "".join([count, *(f" in {place}" for place in places)])
    some = places.most_common(PLACES_NAMED_MAX)
    named = ", ".join(f"{number} in {place}" for place, number in some)
    rest = len(places) - len(some)
    return f"{count}: {named}" + (f" and {rest} other places" if rest else "")
