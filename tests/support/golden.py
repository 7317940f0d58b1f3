"""Golden data recorded from the original: where it lies, and what to do where it does not.

It is looked for beside the repository, or where TROUPEMQ_GOLDEN points. A clone without it skips
the tests that need it, with one visible line; under TROUPEMQ_CI its absence is a failure. Only a
test that runs may ask for it: a module that did while it is imported would end the collection of
a clone without it, which nobody who has the data would notice.

What is named BY_HAND is everywhere: tests/support/by_hand makes it.
"""

import json
import os
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from protocol.ha import Transfer, TransferBuffer
from tests.support.by_hand import BY_HAND
from tests.support.by_hand.frames import frames_by_hand
from tests.support.by_hand.replication import stream
from tests.support.by_hand.store import manifest as manifest_by_hand
from tests.support.by_hand.store import write_store

REPOSITORY = Path(__file__).resolve().parents[2]
NO_GOLDEN_DATA = "no golden data at "
"""The beginning of the one line that is told for all the tests that are skipped for it."""


def golden_root() -> Path:
    """The folder of the golden data; skips (or, under TROUPEMQ_CI, fails) where there is none.

    Raises RuntimeError when no test runs, whether the data is there or not.
    """
    if "PYTEST_CURRENT_TEST" not in os.environ:
        raise RuntimeError("golden data is for running tests, not for modules that are imported")
    root = _looked_for()
    if _is_there(root):
        return root
    sentence = f"{NO_GOLDEN_DATA}{root} (set TROUPEMQ_GOLDEN to its folder)"
    if os.environ.get("TROUPEMQ_CI") == "1":
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


def wire_if_there() -> Path | None:
    """The folder of recorded frames, for who can begin with those made by hand where it is not."""
    root = _looked_for()
    return root / "wire" if _is_there(root) else None


def _looked_for() -> Path:
    named = os.environ.get("TROUPEMQ_GOLDEN")
    return Path(named) if named else REPOSITORY.parent / "shared" / "golden"


def _is_there(root: Path) -> bool:
    return (root / "wire").is_dir() and (root / "store").is_dir()


def frames(name: str) -> Iterator[dict[str, Any]]:
    """Every recorded frame of wire/NAME.jsonl; `frame` and `body` are bytes.

    Frames over 64 KiB are cut and have `truncated`.
    """
    if name == BY_HAND:
        yield from frames_by_hand()
        return
    with (golden_root() / "wire" / f"{name}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            record["frame"] = bytes.fromhex(record["frame_hex"])
            record["body"] = bytes.fromhex(record["body_hex"])
            yield record


class _Entry(NamedTuple):
    """A file of a store, or a folder, which has no data."""

    path: str
    data: bytes | None
    modified_s: float


def store(name: str, into_path: Path | str, only: str = "") -> Path:
    """Unpacks store/NAME.tar.xz below `into_path`, file times kept; returns the store's root.

    `only`: no other folder of the store than this.
    """
    target = Path(into_path)
    target.mkdir(parents=True, exist_ok=True)
    wanted = os.path.join(name, only) if only else name
    for entry in _by_hand() if name == BY_HAND else _unpacked(golden_root(), name):
        if not f"{entry.path}/".startswith(f"{wanted}/"):
            continue
        path = os.path.join(target, entry.path)
        if entry.data is None:
            os.makedirs(path, exist_ok=True)
            continue
        with open(path, "wb", buffering=0) as file:
            file.write(entry.data)
        os.utime(path, (entry.modified_s, entry.modified_s))
    return target / name


@cache
def _unpacked(root: Path, name: str) -> tuple[_Entry, ...]:
    with tarfile.open(root / "store" / f"{name}.tar.xz") as archive:
        return tuple(
            _Entry(
                member.name,
                None if (file := archive.extractfile(member)) is None else file.read(),
                float(member.mtime),
            )
            for member in archive
        )


@cache
def _by_hand() -> tuple[_Entry, ...]:
    """As it was made in the first test that wanted it."""
    with TemporaryDirectory() as folder:
        root = Path(folder) / BY_HAND
        write_store(root)
        return tuple(
            _Entry(
                str(path.relative_to(folder)),
                path.read_bytes() if path.is_file() else None,
                path.stat().st_mtime,
            )
            for path in (root, *sorted(root.rglob("*")))
        )


def manifest(name: str) -> dict[str, Any]:
    """What the original said of that store: store/NAME.json; not to be changed."""
    return _manifest_by_hand() if name == BY_HAND else _manifest(golden_root(), name)


@cache
def _manifest(root: Path, name: str) -> dict[str, Any]:
    text = (root / "store" / f"{name}.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


_manifest_by_hand = cache(manifest_by_hand)


def replication(name: str) -> list[dict[str, Any]]:
    """Every line of the recorded replication stream ha/NAME.jsonl, in order."""
    if name == BY_HAND:
        return stream()
    text = (golden_root() / "ha" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def transfers(name: str) -> list[Transfer]:
    """What the original's master sent in that stream, signs of life (no bytes) included."""
    buffer = TransferBuffer()
    return [
        transfer
        for line in replication(name)
        if line["type"] == "bytes" and line["dir"] == "master->slave"
        for transfer in buffer.receive(bytes.fromhex(line["hex"]))
    ]
