"""Findings of the fuzzer, and fuzz runs from recorded frames.

`make test` tries some thousand damaged frames, `make trials` more, and a coverage-guided run. A
longer run is `python -m tests.security.fuzz`. Runs start with the golden frames, or with hand-made
ones where these are missing. Where atheris has no wheel, hypothesis draws as many inputs as take as
long.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as drawn_from
from hypothesis import strategies as st

from protocol.errors import FrameError
from protocol.stream import Stream
from tests.security.fuzz import TARGETS, seeds
from tests.security.fuzzing.mutating import damaged
from tests.support.fuzz_connections import end as end_connections
from tests.support.fuzz_connections import take as take_connection
from tests.support.fuzz_target import take
from tests.support.golden import wire_if_there

GUIDED_S = 20
DAMAGED = 230
"""Frames of one seed."""

DRAWN = {"frames": 2000, "connections": 1000}
"""Inputs where there is no run guided by coverage."""
SIGNED = (
    b'{"code":310,"extFields":{"a":"g","b":"T","c":"TBW102","d":"4","e":"1","f":"0",'
    b'"g":"1795189863527","h":"0","i":"","j":"0","k":"false","m":"false","n":"broker-a",'
    b'"Signature":"%b","AccessKey":%b},"flag":0,"language":"JAVA","opaque":34,'
    b'"serializeTypeCurrentRPC":"JSON","version":407}'
)


def framed(header: bytes, body: bytes = b"x") -> bytes:
    length = 4 + len(header) + len(body)
    return length.to_bytes(4) + len(header).to_bytes(4) + header + body


def test_a_signature_that_contains_its_end_mark_is_refused() -> None:
    """The fast decoder took 28 bytes for it, whatever they were."""
    data = framed(SIGNED % (b'n9eEeEeEeE=","AccessKey":=,', b'"RocketMQ"'))
    take(b"\0" + data)
    (event,) = Stream().receive(data)
    assert isinstance(event, FrameError)


def test_a_signature_that_is_not_utf_8_is_refused_by_every_decoder() -> None:
    take(b"\0" + framed(SIGNED % (b"n9\x92\xbb\xcd\x92" + b"A" * 22, b'"RocketMQ"')))


def test_a_truncated_end_request_closes_the_connection() -> None:
    """A decoder read behind the last byte, and the connection's actor failed."""
    head = b"\x00\x25" + b"\x01\x01\x97" + bytes(12)
    frame = (4 + len(head)).to_bytes(4) + b"\x01" + len(head).to_bytes(3) + head
    (event,) = Stream().receive(frame)
    assert isinstance(event, FrameError)
    try:
        for accounts in (b"\0", b"\1"):
            take_connection(accounts + frame)
    finally:
        end_connections()


def test_a_tag_expression_without_tags_is_refused() -> None:
    take(b"\x06||")


@cache
def recorded() -> list[bytes]:
    """Return the first inputs of each run."""
    return [*seeds(wire_if_there())]


def some(seed: int) -> list[bytes]:
    """Return the part of this seed; a few seeds cover all."""
    found = recorded()
    parts = -(-len(found) // DAMAGED)
    return found[seed % parts :: parts]


@pytest.mark.trial(short=10, long=3000)
def test_damaged_frames_are_refused_without_side_effects(seed: int) -> None:
    """Each seed damages recorded frames once: bits, bytes, pieces doubled, cut and moved."""
    random = Random(seed)
    found = recorded()
    for data in some(seed):
        take(damaged(data, random.choice(found), random, 1))


@pytest.mark.trial(short=1, long=300)
def test_damaged_frames_do_not_affect_other_connections(seed: int) -> None:
    """Frames go to a whole broker, with and without access control, in pieces or at once."""
    random = Random(seed)
    found = recorded()
    try:
        for data in some(seed):
            how = bytes((random.randrange(256),))
            take_connection(how + damaged(data, random.choice(found), random, 1)[1:])
    finally:
        end_connections()


PIECES = st.lists(
    st.tuples(
        *(st.integers(0, 4096),) * 3,  # where, of which frame, from where there
        st.integers(0, 200),
        st.binary(max_size=8),
    ),
    max_size=4,
)
Drawn = tuple[int, list[tuple[int, int, int, int, bytes]]]
INPUTS: st.SearchStrategy[Drawn] = st.tuples(st.integers(0, 4096), PIECES)


def input_of(drawn: Drawn) -> bytes:
    """A recorded frame with bytes and pieces of others in place of some of its own."""
    found = recorded()
    number, pieces = drawn
    data = bytearray(found[number % len(found)])
    for at, number, begin, length, own in pieces:
        at, other = 1 + at % len(data), found[number % len(found)]
        data[at : at + length] = own + other[begin : begin + length]
    return bytes(data)


def run_drawn(target: str, seed: int, examples: int) -> None:
    """Run with this seed; hypothesis shortens a failing input."""
    taking = take if target == "frames" else take_connection

    @drawn_from(seed)
    @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    @given(INPUTS)
    def run(drawn: Drawn) -> None:
        taking(input_of(drawn))

    try:
        run()
    finally:
        end_connections()


@pytest.mark.trial(short=1, long=30)
@pytest.mark.parametrize("target", TARGETS)
def test_random_inputs_are_refused_without_side_effects(target: str, seed: int) -> None:
    """The run without atheris is shorter."""
    run_drawn(target, seed, DRAWN[target] // 100)


@pytest.mark.slow(seconds=GUIDED_S)
@pytest.mark.trial(short=0, long=1, every=4)
@pytest.mark.parametrize("target", TARGETS)
def test_a_coverage_guided_run_finds_nothing(
    target: str, seed: int, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    if find_spec("atheris") is None:
        run_drawn(target, seed, DRAWN[target])
        tell(f"fuzz, {target}: no atheris here, {DRAWN[target]:,} inputs drawn by hypothesis")
        return
    begins = str(wire_if_there() or "-")
    command = [sys.executable, "-m", "tests.security.fuzz", str(tmp_path), str(GUIDED_S), begins]
    done = subprocess.run(
        [*command, target],
        capture_output=True,
        text=True,
        timeout=GUIDED_S * 5,
    )
    said = done.stderr.splitlines()
    tell(f"fuzz, {target}: {next((line for line in said if line.startswith('Done')), said[-1])}")
    assert done.returncode == 0, "\n".join(said[-30:])
