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
from pathlib import Path
from typing import Any

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
    named = os.environ.get("TROUPEMQ_GOLDEN")
    root = Path(named) if named else REPOSITORY.parent / "shared" / "golden"
    if (root / "wire").is_dir() and (root / "store").is_dir():
        return root
    sentence = f"{NO_GOLDEN_DATA}{root} (set TROUPEMQ_GOLDEN to its folder)"
    if os.environ.get("TROUPEMQ_CI") == "1":
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


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


def store(name: str, into_path: Path | str) -> Path:
    """Unpacks store/NAME.tar.xz below `into_path`, file times kept; returns the store's root."""
    target = Path(into_path)
    target.mkdir(parents=True, exist_ok=True)
    if name == BY_HAND:
        write_store(target / name)
        return target / name
    with tarfile.open(golden_root() / "store" / f"{name}.tar.xz") as archive:
        # The filter keeps times and is absent from the first 3.11 releases.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(target)
    return target / name


def manifest(name: str) -> dict[str, Any]:
    """What the original said of that store: store/NAME.json."""
    if name == BY_HAND:
        return manifest_by_hand()
    text = (golden_root() / "store" / f"{name}.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


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
