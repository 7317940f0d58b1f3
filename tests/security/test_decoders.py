"""Every reader of bytes from outside: own errors only, in 50 ms and 64 MiB for each MiB of input.

`make test` tries some damaged inputs of each, `make trials` more, and has a run of
`tests.security.fuzzing` over all of them; for one of hours see CONTRIBUTING.md, Attempts.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.security.fuzzing import judge
from tests.security.fuzzing.__main__ import main
from tests.security.fuzzing.decoder import Decoder
from tests.security.fuzzing.judge import BYTES_MAX, Judge, attempt, fault_of
from tests.security.fuzzing.mutating import drawn, stretched
from tests.security.fuzzing.one import FOUND
from tests.security.fuzzing.table import DECODERS
from tests.support.golden import REPOSITORY

GUIDED_S = 60
READS = re.compile(
    "decode|parse|read|loads|unpack|inflate|decompress|unfolds|scan|receive|more|compile_"
    "|tokens|cut|first_|pairs|from_json|of_command|general|library_loads|resolved|integer_of|text_of"
    "|chain_of|signed_values"
)
"""Prefixes of the names of public readers."""


def readers() -> Iterator[str]:
    """The public functions and methods of `protocol/` that are called like readers."""
    root = REPOSITORY / "protocol"
    for path in sorted(root.rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                yield from _named(f"{module}.", node)
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef):
                        yield from _named(f"{module}.{node.name}.", each)


def _named(where: str, function: ast.FunctionDef) -> Iterator[str]:
    if READS.match(function.name):
        yield where + function.name


def test_every_reader_of_the_protocol_is_tried() -> None:
    """A new one belongs into tests/security/fuzzing/table.py."""
    covered = {name for each in DECODERS.values() for name in each.covers}
    found = set(readers())
    assert found - covered == set()
    assert covered - found == set(), "the table names what is not there"
    assert len(found) > 40


def test_every_body_and_header_is_a_separate_target() -> None:
    for folder, base, prefix in (("", "Body", "body"), ("headers", "Header", "fields")):
        for path in (REPOSITORY / "protocol" / folder).glob("*.py"):
            names = re.findall(rf"^class (\w+)\({base}\):", path.read_text(), re.MULTILINE)
            assert [name for name in names if f"{prefix}.{name}" not in DECODERS] == []
    assert len(DECODERS) > 180


@pytest.mark.trial(short=1, long=100)
def test_damaged_inputs_raise_only_the_decoders_own_errors(seed: int) -> None:
    """A few of each decoder; the run of all of them has a process for each."""
    random = Random(seed)
    for decoder in DECODERS.values():
        seeds = decoder.seeds()
        for data in seeds:
            attempt(decoder, data)
        for _ in range(5):
            data = drawn(seeds, random)
            try:
                attempt(decoder, data)
            except Exception as error:
                raise AssertionError(f"{decoder.name} read {data!r}") from error


@pytest.mark.trial(short=0, long=20)
def test_long_inputs_take_at_most_50_ms_and_64_mib(seed: int) -> None:
    random = Random(seed)
    faults = {}
    for decoder in DECODERS.values():
        data = stretched(random.choice(decoder.seeds()), random, decoder.bytes_max)
        if fault := fault_of(decoder, data):
            faults[decoder.name] = fault, data[:100]
    assert faults == {}


@pytest.mark.slow(seconds=GUIDED_S)
@pytest.mark.trial(short=0, long=1, every=4)
def test_a_run_over_all_decoders_finds_nothing(
    seed: int, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    command = [sys.executable, "-m", "tests.security.fuzzing", str(tmp_path)]
    command += ["--seconds", str(GUIDED_S), "--processes", "2", "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GUIDED_S * 5)
    tell(f"fuzz, decoders: {done.stdout.splitlines()[-1] if done.stdout else done.stderr[-200:]}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


# --- the harness itself


def faulty(read: Callable[[bytes], object]) -> Decoder:
    return Decoder("faulty", read, (ValueError,), lambda: [b"seed"])


def test_an_error_of_another_kind_is_a_fault() -> None:
    def read(data: bytes) -> object:
        return int("own") if data == b"y" else {b"y": 1}[data]

    assert fault_of(faulty(read), b"y") == ""
    assert fault_of(faulty(read), b"x") == "KeyError: b'x'"


class Clock:
    """CPU time as these decoders spend it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(judge, "thread_time", made)
    return made


def test_more_than_50_ms_per_mebibyte_is_a_fault(clock: Clock) -> None:
    def read(data: bytes) -> None:
        clock.now_s += 0.06

    assert fault_of(faulty(read), b"x") == "60 ms for 1 bytes"
    assert fault_of(faulty(read), bytes(2 << 20)) == ""


def test_more_than_64_mib_is_a_fault() -> None:
    large = faulty(lambda data: bytes(BYTES_MAX * len(data) + 1))
    assert fault_of(large, b"") == ""
    assert fault_of(large, b"x") == "64 MiB for 1 bytes"


def test_memory_kept_by_a_decoder_counts_as_a_fault(clock: Clock) -> None:
    kept: set[bytes] = set()

    def read(data: bytes) -> None:
        clock.now_s += 0.0 if data in kept else 0.06
        kept.add(data)

    assert fault_of(faulty(read), b"x") == "", "the shortest time counts"
    assert fault_of(replace(faulty(read), forget=kept.clear), b"x") == "60 ms for 1 bytes"


@pytest.mark.slow
def test_the_judging_process_survives_its_inputs() -> None:
    made = Judge("fastjson.short")
    assert made.fault_of(b"{") == "" and made.fault_of(b"[" * 100_000) == ""
    assert made.count == 2 and made.cpu_s > 0
    made.end()


@pytest.mark.slow
def test_a_finding_is_saved_and_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A decoder of the table is tried without its own error class."""
    program = (
        "import sys; from dataclasses import replace\n"
        "from tests.security.fuzzing import one, table\n"
        "table.DECODERS['host'] = replace(table.DECODERS['host'], errors=())\n"
        f"sys.argv = ['', 'host', {str(tmp_path)!r}, '20', '1']\n"
        "one.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == FOUND, done.stderr
    assert "finding: host: ValueError: a packed host has" in done.stdout
    (saved,) = [each for each in (tmp_path / "findings").iterdir() if not each.suffix]
    assert main(["--check", "host", str(saved)]) == 0, "with its own error nothing is wrong"
    assert capsys.readouterr().out == "nothing is wrong\n"
