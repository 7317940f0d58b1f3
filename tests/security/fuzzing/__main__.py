"""Fuzz runs over every decoder: `python -m tests.security.fuzzing CORPUS --seconds 3600`.

Each decoder (table.py) has a process of its own for a slice of the time, in an order that the seed
says; there are several rounds if there is time for them. Coverage guides them where atheris is
installed. The run stops at the first finding; with `--keep-going` it goes on without that decoder.
CORPUS/findings has the inputs; `--check NAME FILE` reads one again and says what is wrong.
CORPUS/report.json has what this command prints at its end. Exit code 1: there are findings.
"""

import json
import os
import signal
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from select import select
from time import monotonic

from tests.security.fuzzing.judge import fault_of, warm_up
from tests.security.fuzzing.one import folder_of

SLICE_S_MIN, SLICE_S_MAX = 5, 300
STARTING_S = 120
"""Beyond its slice: for its start, and for the input that it is at."""
TELL_EACH_S = 60.0
LOOK_EACH_S = 1.0


@dataclass(slots=True)
class Tried:
    """Result of a run with one decoder."""

    name: str
    slices: int = 0
    cpu_s: float = 0.0
    inputs: int = 0
    judged: int = 0
    finding: str = ""


@dataclass(slots=True)
class _Slice:
    """A process that tries a decoder."""

    tried: Tried
    process: subprocess.Popen[bytes]
    until_s: float
    ends: int
    """A file descriptor that can be read when it has ended."""


class Campaign:
    """The runs of all decoders."""

    def __init__(self, options: Namespace, names: Sequence[str]) -> None:
        self._options = options
        self._corpus: Path = options.corpus
        self._random = Random(options.seed)
        self.tried = [Tried(name) for name in names]
        self._running: list[_Slice] = []
        share = options.seconds * options.processes / len(names)
        self._slice_s = int(min(max(share, SLICE_S_MIN), SLICE_S_MAX))
        self._is_stopped = False

    def run(self) -> None:
        """Run slices until the time is over, or a decoder has failed."""
        began_s = told_s = monotonic()
        end_s = began_s + self._options.seconds
        waiting: list[Tried] = []
        try:
            while not self._is_stopped and monotonic() < end_s:
                while len(self._running) < self._options.processes:
                    waiting = waiting or self._next_round()
                    if not waiting:
                        return
                    self._start(waiting.pop(), end_s)
                self._collect()
                if monotonic() - told_s > TELL_EACH_S:
                    told_s = monotonic()
                    self._tell(f"{told_s - began_s:.0f} s of {self._options.seconds}")
            while self._running and not self._is_stopped:
                self._collect()
        finally:
            self._end()

    def _next_round(self) -> list[Tried]:
        """All that have not failed, those that had the fewest slices first."""
        running = [each.tried for each in self._running]
        found = [each for each in self.tried if not each.finding and each not in running]
        self._random.shuffle(found)
        found.sort(key=lambda each: -each.slices)
        return found

    def _start(self, tried: Tried, end_s: float) -> None:
        seconds = max(1, min(self._slice_s, int(end_s - monotonic())))
        seed = self._random.randrange(1, 1 << 31)
        command = [sys.executable, "-m", "tests.security.fuzzing.one", tried.name]
        command += [str(self._corpus), str(seconds), str(seed)]
        tried.slices += 1
        with self._log(tried).open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        until_s, ends = monotonic() + seconds + STARTING_S, os.pidfd_open(process.pid)
        self._running.append(_Slice(tried, process, until_s, ends))

    def _log(self, tried: Tried) -> Path:
        return self._corpus / f"{folder_of(tried.name)}.log"

    def _collect(self) -> None:
        """Wait a little for an end, and take note of the processes that have ended."""
        select([each.ends for each in self._running], [], [], LOOK_EACH_S)
        for each in [*self._running]:
            pid, status, usage = os.wait4(each.process.pid, os.WNOHANG)
            is_late = not pid and monotonic() > each.until_s
            if is_late:
                os.killpg(each.process.pid, signal.SIGKILL)
                _, status, usage = os.wait4(each.process.pid, 0)
            elif not pid:
                continue
            self._running.remove(each)
            os.close(each.ends)
            code = each.process.returncode = os.waitstatus_to_exitcode(status)
            self._count(each.tried, usage.ru_utime + usage.ru_stime)
            if code or is_late:
                self._failed(each.tried, "it did not end" if is_late else f"exit code {code}")

    def _count(self, tried: Tried, cpu_s: float) -> None:
        status = self._corpus / f"{folder_of(tried.name)}.status"
        said = json.loads(status.read_text()) if status.exists() else {}
        tried.cpu_s += cpu_s + said.get("judge_cpu_s", 0.0)
        tried.inputs += said.get("inputs", 0)
        tried.judged += said.get("judged", 0)
        status.unlink(missing_ok=True)

    def _failed(self, tried: Tried, how: str) -> None:
        lines = self._log(tried).read_text(errors="replace").splitlines()
        found = [line for line in lines if line.startswith("finding: ")]
        tried.finding = found[-1].removeprefix("finding: ") if found else f"{tried.name}: {how}"
        self._tell(f"finding: {tried.finding}")
        if not found:
            print("\n".join(lines[-30:]), flush=True)
        self._is_stopped = not self._options.keep_going

    def _tell(self, what: str) -> None:
        cpu_s, inputs = sum(t.cpu_s for t in self.tried), sum(t.inputs for t in self.tried)
        print(f"{what}; so far {cpu_s / 3600:.2f} CPU hours, {inputs:,} inputs", flush=True)

    def _end(self) -> None:
        for each in self._running:
            os.killpg(each.process.pid, signal.SIGKILL)
            _, status, usage = os.wait4(each.process.pid, 0)
            each.process.returncode = os.waitstatus_to_exitcode(status)
            os.close(each.ends)
            self._count(each.tried, usage.ru_utime + usage.ru_stime)
        self._running.clear()


def _options(given: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser("python -m tests.security.fuzzing", description=__doc__)
    parser.add_argument("corpus", type=Path, nargs="?", help="folder of inputs; made if missing")
    parser.add_argument("--seconds", type=int, default=600, help="of the whole run [600]")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="at once [all cores]")
    parser.add_argument("--seed", type=int, help="of the order and of all draws [random]")
    parser.add_argument("--only", action="append", default=[], help="a decoder; may be repeated")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a finding")
    parser.add_argument("--check", nargs=2, metavar=("NAME", "FILE"), help="read one input again")
    options = parser.parse_args(given)
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4))
    if options.corpus is None and not options.check:
        parser.error("name the folder of the corpus")
    return options


def _report(campaign: Campaign, options: Namespace) -> int:
    tried = sorted(campaign.tried, key=lambda each: -each.inputs)
    print(f"{'decoder':40} {'CPU s':>9} {'inputs':>12} {'judged':>9}")
    for each in tried:
        print(f"{each.name:40} {each.cpu_s:9.1f} {each.inputs:12,} {each.judged:9,}")
    findings = [each.finding for each in tried if each.finding]
    missed = sum(not each.slices for each in tried)
    campaign._tell(f"{len(tried) - missed} of {len(tried)} decoders, {len(findings)} findings")
    print(*findings, sep="\n", end="\n" if findings else "")
    report = {"seed": options.seed, "decoders": [asdict(each) for each in tried]}
    (options.corpus / "report.json").write_text(json.dumps(report, indent=1))
    return 1 if findings else 0


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    from tests.security.fuzzing.table import DECODERS

    options = _options(given)
    if options.check:
        name, file = options.check
        warm_up(DECODERS[name])
        fault = fault_of(DECODERS[name], Path(file).read_bytes())
        print(fault or "nothing is wrong")
        return 1 if fault else 0
    options.corpus.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, {options.processes} processes", flush=True)
    campaign = Campaign(options, options.only or list(DECODERS))
    try:
        campaign.run()
    except KeyboardInterrupt:
        print("stopped")
    return _report(campaign, options)


if __name__ == "__main__":
    sys.exit(main())
