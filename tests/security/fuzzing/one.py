"""The fuzz run of one decoder: `python -m tests.security.fuzzing.one NAME CORPUS SECONDS SEED`.

Guided by coverage where atheris is installed, else damaged inputs. CORPUS/NAME holds the inputs
that reach new code, CORPUS/findings what fails, NAME-….log beside it what is wrong with it, and
CORPUS/NAME.status how far the run is.
"""

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from hashlib import sha1
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, NoReturn

from tests.security.fuzzing.judge import Judge, attempt, limit_memory, peak_bytes, warm_up
from tests.security.fuzzing.mutating import drawn, stretched

WATCHED = ("protocol", "storage", "actors", "troupemq", "spark")
INPUT_BYTES_MAX = 8 << 10
"""Length limit of coverage-guided inputs; longer inputs are stretched ones."""
SUSPICIOUS_S = 0.02
SUSPICIOUS_BYTES = 8 << 20
"""More CPU time, or a peak that is so much higher, and the judge measures it."""
STRETCHED_EACH = 100
"""One of so many inputs is stretched."""
CORPUS_INPUTS_MAX = 2000
"""Number of inputs with which a run without coverage starts."""
STUCK_S = 60
STATUS_EACH_S = 1.0
FOUND = 77
"""The exit code after a finding."""


def folder_of(name: str) -> str:
    """Return the name of a decoder as that of a folder."""
    return name.replace(" ", "_")


class Run:
    """Tries inputs until one fails."""

    def __init__(self, name: str, corpus: Path, seed: int) -> None:
        from tests.security.fuzzing.table import DECODERS

        self.decoder = DECODERS[name]
        self._name = name
        self._findings = corpus / "findings"
        self._status = corpus / f"{folder_of(name)}.status"
        self._random = Random(seed)
        self._judge = Judge(name)
        self._inputs = 0
        self._said_s = 0.0
        self._last = b""

    def seeds(self) -> list[bytes]:
        """Read the inputs that the run begins with, which imports what the decoder needs."""
        warm_up(self.decoder)
        return [bytes(each) for each in self.decoder.seeds()]

    def take(self, data: bytes) -> None:
        """Try one input, and sometimes a long one that is made of it."""
        self._inputs += 1
        self._last = data
        before = peak_bytes()
        try:
            spent_s = attempt(self.decoder, data)
        except Exception as error:
            self._found(data, f"{type(error).__name__}: {str(error)[:200]}")
        if spent_s > SUSPICIOUS_S or peak_bytes() - before > SUSPICIOUS_BYTES:
            self._judged(data)
        if self._random.randrange(STRETCHED_EACH) == 0:
            self._judged(stretched(data, self._random, self.decoder.bytes_max))
        if monotonic() - self._said_s > STATUS_EACH_S:
            self.say()

    def say(self) -> None:
        """Write how far the run is."""
        self._said_s = monotonic()
        said = {"inputs": self._inputs, "judged": self._judge.count}
        said["judge_cpu_s"] = round(self._judge.cpu_s, 1)  # type: ignore[assignment]
        self._status.write_text(json.dumps(said))

    def stuck(self, *_: object) -> None:
        """Save the input that takes too long."""
        self._found(self._last, f"no end after {STUCK_S} s")

    def _judged(self, data: bytes) -> None:
        if fault := self._judge.fault_of(data):
            self._found(data, fault)

    def _found(self, data: bytes, fault: str) -> NoReturn:
        digest = sha1(data, usedforsecurity=False).hexdigest()[:12]
        path = self._findings / f"{folder_of(self._name)}-{digest}"
        path.write_bytes(data)
        path.with_name(f"{path.name}.log").write_text(f"{self._name}: {fault}\n")
        self.say()
        print(f"finding: {self._name}: {fault}: {path}", flush=True)
        os._exit(FOUND)


def main() -> None:
    name, corpus = sys.argv[1], Path(sys.argv[2])
    seconds, seed = int(sys.argv[3]), int(sys.argv[4])
    folder = corpus / folder_of(name)
    for each in (folder, corpus / "findings"):
        each.mkdir(parents=True, exist_ok=True)
    faulthandler.enable()
    guided = import_module("atheris") if find_spec("atheris") is not None else None
    with guided.instrument_imports(include=WATCHED) if guided else nullcontext():
        run = Run(name, corpus, seed)
        seeds = run.seeds()
    limit_memory()
    run.say()
    if guided is None:
        _draw(run, seeds, folder, seconds, seed)
    else:
        _guided(guided, run.take, seeds, folder, seconds, seed)


def _guided(
    atheris: Any,
    take: Callable[[bytes], None],
    seeds: list[bytes],
    folder: Path,
    seconds: int,
    seed: int,
) -> None:
    for each in seeds:
        if len(each) <= INPUT_BYTES_MAX:
            (folder / sha1(each, usedforsecurity=False).hexdigest()).write_bytes(each)
    options = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", f"-seed={seed or 1}"]
    options += [f"-timeout={STUCK_S}", "-rss_limit_mb=0", "-verbosity=0"]
    options += [f"-artifact_prefix={folder.parent}/findings/{folder.name}-"]
    atheris.Setup([sys.argv[0], *options, str(folder)], take)
    atheris.Fuzz()


def _draw(run: Run, seeds: list[bytes], folder: Path, seconds: int, seed: int) -> None:
    random = Random(seed)
    found = [each.read_bytes() for each in sorted(folder.iterdir())[:CORPUS_INPUTS_MAX]]
    until_s = monotonic() + seconds
    signal.signal(signal.SIGALRM, run.stuck)
    while monotonic() < until_s:
        signal.alarm(STUCK_S)
        run.take(drawn([*seeds, *found], random))
    signal.alarm(0)
    run.say()


if __name__ == "__main__":
    main()
