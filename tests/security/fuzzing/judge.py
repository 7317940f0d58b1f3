"""The verdict on one input: own errors only, within 50 ms and 64 MiB per MiB of input.

An input that looks expensive where coverage slows everything down is judged by a process without:

    u32 length | input      to its standard input
    a line of JSON          from its standard output: what is wrong, and its CPU seconds
"""

import gc
import json
import os
import resource
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from select import select
from struct import Struct
from time import process_time, thread_time

from tests.security.fuzzing.decoder import Decoder

SECONDS_MAX = 0.05
BYTES_MAX = 64 << 20
"""Memory limit, like that of time: for each MiB of input, and for a shorter input."""
TRIES = 4
"""The shortest time counts: a collection of garbage, or a cold cache, is no fault of the input."""
ANSWER_S = 60
"""An input that has no verdict by then takes too long."""
DATA_BYTES_MAX = 4 << 30
"""Data limit of a process that tries inputs.

Beyond it Python raises MemoryError, which no decoder may raise.
"""
_LENGTH = Struct("<I")


def limit_memory() -> None:
    """Limit what this process may allocate beyond what it has; Arrow reserves GiBs at once."""
    with open("/proc/self/statm", encoding="ascii") as file:
        has = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)  # which the judge may need in full
    resource.setrlimit(resource.RLIMIT_DATA, (has + DATA_BYTES_MAX, hard))


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def attempt(decoder: Decoder, data: bytes) -> float:
    """Read an input and return the CPU seconds. Raises any error that is not the decoder's own."""
    decoder.forget()
    began_s = thread_time()
    with suppress(*decoder.errors):
        decoder.read(data)
    return thread_time() - began_s


def fault_of(decoder: Decoder, data: bytes) -> str:
    """Return what is wrong with how this input is read; empty for nothing."""
    mebibytes = max(1.0, len(data) / (1 << 20))
    before = peak_bytes()
    try:
        shortest_s = min(_times(decoder, data, SECONDS_MAX * mebibytes))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    if shortest_s > SECONDS_MAX * mebibytes:
        return f"{shortest_s * 1000:.0f} ms for {len(data)} bytes"
    made = max(_traced_bytes(decoder, data), peak_bytes() - before)
    if made > BYTES_MAX * mebibytes:
        return f"{made >> 20} MiB for {len(data)} bytes"
    return ""


def _times(decoder: Decoder, data: bytes, limit_s: float) -> list[float]:
    times: list[float] = []
    while len(times) < TRIES and (not times or times[-1] > limit_s):
        gc.collect()
        times.append(attempt(decoder, data))
    return times


def _traced_bytes(decoder: Decoder, data: bytes) -> int:
    tracemalloc.start()
    try:
        attempt(decoder, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def warm_up(decoder: Decoder) -> None:
    """Read its seeds: what is imported and made once is no input's."""
    for data in decoder.seeds():
        for _ in range(2):
            attempt(decoder, data)


class Judge:
    """A process that judges inputs, started when it is first asked."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None
        self.count = 0
        self.cpu_s = 0.0

    def fault_of(self, data: bytes) -> str:
        """Return what is wrong with how this input is read; empty for nothing."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.security.fuzzing.judge", self._name]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        self.count += 1
        try:
            process.stdin.write(_LENGTH.pack(len(data)) + data)
            process.stdin.flush()
        except BrokenPipeError:
            return self._ended("ended before this input")
        if not select([process.stdout], [], [], ANSWER_S)[0]:
            return self._ended(f"no end after {ANSWER_S} s")
        line = process.stdout.readline()
        if not line:
            return self._ended("the process that read it ended")
        fault, self.cpu_s = json.loads(line)
        return str(fault)

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait(ANSWER_S)
            self._process.stdout.close()
            self._process = None

    def _ended(self, fault: str) -> str:
        assert self._process is not None
        self._process.kill()
        code = self._process.wait()
        self._process = None
        return f"{fault} (exit code {code})"


def main(name: str) -> None:
    """Judge inputs until there are no more."""
    from tests.security.fuzzing.table import DECODERS

    decoder = DECODERS[name]
    warm_up(decoder)
    limit_memory()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a decoder may print
    while len(head := sys.stdin.buffer.read(_LENGTH.size)) == _LENGTH.size:
        data = sys.stdin.buffer.read(_LENGTH.unpack(head)[0])
        answers.write(json.dumps([fault_of(decoder, data), process_time()]) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
