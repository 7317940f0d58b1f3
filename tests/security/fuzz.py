"""The fuzz run, guided by coverage: `python -m tests.security.fuzz CORPUS SECONDS [WIRE] [TARGET]`.

CORPUS is a folder: what it holds is where the run begins, and what reaches new code is added. WIRE
is the folder of recorded frames (golden/wire); without it, or with `-`, those made by hand begin.
TARGET is `frames`, the readers of everything that comes from outside (fuzz_target.py), or
`connections`, a whole broker that a stranger writes to (fuzz_connections.py); each reader on its
own is a target of `tests.security.fuzzing`. It needs atheris, which `make test` installs where it
has a wheel. What fails is written into CORPUS as crash-…, the rest of the run is over then: make a
test of it (test_fuzz.py) and start again.
"""

import json
import sys
from collections.abc import Iterator
from hashlib import sha1
from importlib import import_module
from pathlib import Path

FRAME_KINDS = 5
TARGETS = {
    "frames": ("tests.support.fuzz_target", ["protocol", "protocol.sql92", "protocol.headers"]),
    "connections": (
        "tests.support.fuzz_connections",
        ["protocol", "protocol.headers", "actors.network", "actors.access", "actors.sending"],
    ),
}
"""The module whose `take` gets each input, and what is watched."""
BYTES_MAX = 8 << 10


def seeds(wire: Path | None) -> Iterator[bytes]:
    """Inputs out of recorded frames: one of each code, form and client."""
    from tests.support.by_hand.frames import frames_by_hand

    lines = [*frames_by_hand()]
    for each in sorted(wire.glob("*.jsonl")) if wire is not None else ():
        lines += map(json.loads, each.read_text(encoding="utf-8").splitlines())
    seen = set()
    for number, line in enumerate(lines):
        frame = bytes.fromhex(line["frame_hex"]) if "frame_hex" in line else line["frame"]
        key = (line.get("request_code"), line["direction"], frame[4], len(frame) // 200)
        if key not in seen and len(frame) < BYTES_MAX:
            seen.add(key)
            yield bytes((number % FRAME_KINDS,)) + frame
            body = frame[8 + int.from_bytes(frame[5:8]) :]
            if body.startswith((b"{", b"[")):
                yield b"\x05" + body
                yield b"\x07" + body
    for text in (b"a > 5 AND b = 'x'", b"a BETWEEN 0 AND 3 OR b IN ('x', 'y')", b"a IS NOT NULL"):
        yield b"\x06" + text


def write_seeds(corpus: Path, wire: Path | None) -> int:
    """Writes them where the run begins; how many there are."""
    corpus.mkdir(parents=True, exist_ok=True)
    count = 0
    for data in seeds(wire):
        (corpus / sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
        count += 1
    return count


def main() -> None:
    corpus, seconds = Path(sys.argv[1]), int(sys.argv[2])
    wire = sys.argv[3] if len(sys.argv) > 3 else "-"
    target = sys.argv[4] if len(sys.argv) > 4 else "frames"
    module, watched = TARGETS[target]
    write_seeds(corpus, None if wire == "-" else Path(wire))
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=watched):
        take = import_module(module).take
    options = [f"-max_total_time={seconds}", f"-max_len={BYTES_MAX}", "-timeout=20"]
    options += [f"-artifact_prefix={corpus}/", "-rss_limit_mb=2048", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], take)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
