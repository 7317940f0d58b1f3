"""Golden data recorded from the original: its folder, and the skip or failure without it.

The folder lies beside the repository, or where TROUPEMQ_GOLDEN points. A clone without it skips the
tests that need it, with one visible line; under TROUPEMQ_CI its absence is a failure. Only a
running test may ask for it. A module that asks on import would end the collection in clones without
the data.

Data with the name BY_HAND is everywhere: tests/support/by_hand makes it.
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
"""The first words of the one line for all tests that are skipped without the data."""


def golden_root() -> Path:
    """Return the folder of the golden data; skip (or, under TROUPEMQ_CI, fail) without it.

    Raises RuntimeError outside of a running test, with or without the data.
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
    """Return the folder of recorded frames, for tests that can use those made by hand instead."""
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
    """Return the value as the first test that needed it made it."""
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
    """Return the original's report on that store, store/NAME.json; must not be changed."""
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
    """Return the bytes that the original's master sent, heartbeats (no bytes) included."""
    buffer = TransferBuffer()
    return [
        transfer
        for line in replication(name)
        if line["type"] == "bytes" and line["dir"] == "master->slave"
        for transfer in buffer.receive(bytes.fromhex(line["hex"]))
    ]
