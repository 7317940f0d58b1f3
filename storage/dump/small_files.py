"""Readable output for small files: checkpoint, marks, config files, TroupeMQ's own records."""

from collections.abc import Iterator
from json import JSONDecodeError
from json import loads as loads_json
from struct import Struct
from typing import Any
from zlib import crc32

from protocol.bloom import BloomFilter
from protocol.errors import RemoteError
from protocol.fastjson import dumps, loads
from protocol.fastjson_limits import FastjsonError
from storage.dump.item import DumpError, Item, opened, plain, shortened, utc
from storage.files.disk import Disk
from storage.files.read_only_disk import ReadOnlyDisk
from storage.recovery.checkpoint import CHECKPOINT_BYTES, Checkpoint
from storage.tables.crc_sidecar import Digest, Sidecar, without_flipped_bit
from storage.tables.offset_journal import (
    BROKEN_ENTRY,
    ENTRY_HEAD_BYTES,
    HEAD_BYTES,
    KINDS,
    changes,
    entries,
    read_head,
)
from storage.tables.skipped_entry import LeftOuts
from storage.tables.table_files import table_parsers
from storage.transactions.redo_log import Covered

SMALL_BYTES_MAX = 64 << 20
_TIMES = Struct(">qqq")
_REDO = Struct(">8sqqqqq")
_CRC = Struct(">I")
_REDO_MAGIC = b"TRPTXN01"


def content(disk: Disk, path: str) -> bytes:
    """Return the content of a small file. Raise DumpError."""
    file = opened(disk, path)
    try:
        if file.size() > SMALL_BYTES_MAX:
            raise DumpError(f"{path} is too large for this kind of file: {file.size()} bytes.")
        return file.pread(file.size(), 0) if file.size() else b""
    finally:
        file.close()


def dump_checkpoint(disk: Disk, path: str) -> Iterator[Item]:
    """Yield the three timestamps and TroupeMQ's durable offset."""
    data = content(disk, path)
    if len(data) < _TIMES.size:
        yield Item("checkpoint", {"bytes": len(data), "meaning": "cut off: nothing is known"})
        return
    names = ("commit_log", "consume_queues", "full_index_files")
    fields: dict[str, object] = {"bytes": len(data)}
    fields.update(zip(names, map(utc, _TIMES.unpack_from(data)), strict=True))
    if len(data) == CHECKPOINT_BYTES:
        checkpoint = Checkpoint(ReadOnlyDisk(disk), path)
        checkpoint.load()
        checkpoint.close()
        offset = checkpoint.durable_offset
        fields["durable_offset"] = offset or "unknown: never saved, or another broker ran since"
    yield Item("checkpoint", fields)


def dump_mark(disk: Disk, path: str) -> Iterator[Item]:
    """Yield a file that matters by its existence."""
    name = path.rpartition("/")[2]
    meaning = {
        "abort": "a broker has the store open, or has not stopped cleanly",
        "lock": "byte 0 is locked while a broker runs (not checked here)",
        "replica": "the store of a slave: a master on it looks for topics that its tables lack",
        "rebuild": "the next start rebuilds queues, index and transaction table",
    }
    data = content(disk, path)
    yield Item(name, {"bytes": len(data), "meaning": meaning[name], "content": shortened(data)})


def dump_offset_journal(disk: Disk, path: str) -> Iterator[Item]:
    """Yield the changes of consumer offsets that a start would replay from this file."""
    data = content(disk, path)
    head = read_head(data)
    fields: dict[str, object] = {"bytes": len(data)}
    if head is None:
        yield Item("offset journal", fields | {"meaning": "damaged: without effect"})
        return
    generation, follows, chain = head
    fields |= {"generation": generation, "begun": utc(generation), "follows": f"{follows:08x}"}
    yield Item("offset journal", fields)
    keys: list[str] = []
    end = HEAD_BYTES
    try:
        for payload, _ in entries(data, chain):
            for kind, key, queue_id, offset, rest in changes(payload, keys):
                shown: dict[str, object] = {"change": KINDS[kind]}
                if key:
                    shown |= {"key": plain(key), "queue_id": queue_id, "offset": offset}
                if rest:
                    shown["settled_bytes"] = len(rest)
                yield Item("change", shown, counted=True)
            end += ENTRY_HEAD_BYTES + len(payload)
    except BROKEN_ENTRY as error:
        yield Item("end", {"meaning": f"no entry of a journal: {error}"})
        return
    yield Item("end", {"ignored_bytes": len(data) - end})


def dump_sidecar(disk: Disk, path: str) -> Iterator[Item]:
    sidecar = Sidecar.decode(content(disk, path))
    if sidecar is None:
        yield Item("checksums", {"meaning": "damaged: without effect"})
        return
    fields: dict[str, object] = {"newest": _digest(sidecar.newest)}
    if sidecar.previous is not None:
        fields["previous"] = _digest(sidecar.previous)
    yield Item("checksums", fields)


def _digest(digest: Digest) -> str:
    return f"{digest.size_bytes} bytes, CRC-32 {digest.crc:08x}"


def dump_config(disk: Disk, path: str) -> Iterator[Item]:
    """Yield a JSON file, indented, and whether it is the last saved version."""
    data = content(disk, path)
    fields: dict[str, object] = {"bytes": len(data), "checksums": _sidecar_state(disk, path, data)}
    try:
        text = data.decode("utf-8")
        value = loads(text)
        parse = table_parsers(BloomFilter.of()).get(_config_name(path).rpartition("/")[2])
        left_out: LeftOuts = []
        if parse is not None and text.strip():
            parse(text, left_out)
        if left_out:
            fields["left_out"] = [plain(f"{each.entry}: {each.reason}") for each in left_out]
    except RemoteError as error:
        fields["meaning"] = f"cannot be used: {plain(error.remark)}"
    except (ValueError, OverflowError, RecursionError) as error:
        fields["meaning"] = f"cannot be used: {plain(str(error))}"
    if not data.strip():
        fields["meaning"] = "empty: the previous version counts"
    if "meaning" in fields:
        fields["content"] = shortened(data)
        yield Item("config file", fields)
        return
    yield Item("config file", fields)
    try:
        indented = dumps(value, pretty=True).decode()
    except FastjsonError:
        indented = shortened(data)
    yield Item("content", {"text": indented})


def _config_name(path: str) -> str:
    """Return the path of the main file for one of its versions."""
    for suffix in (".broken", ".tmp", ".bak"):
        path = path.removesuffix(suffix)
    return path


def _sidecar_state(disk: Disk, path: str, data: bytes) -> str:
    try:
        sidecar = Sidecar.decode(disk.read_bytes(f"{_config_name(path)}.crc"))
    except OSError:
        return "missing"
    if sidecar is None:
        return "damaged"
    digest = Digest.of(data)
    if digest == sidecar.newest:
        return "match: the last saved version"
    if digest == sidecar.previous:
        return "match: the previous version"
    expected = sidecar.newest if _config_name(path) == path else sidecar.previous
    if expected is not None and without_flipped_bit(data, expected) is not None:
        return "differ by one flipped bit"
    return "differ: written by another broker or by hand, or damaged"


def dump_redo_log(disk: Disk, path: str) -> Iterator[Item]:
    """Yield the progress of the transaction table."""
    data = content(disk, path)
    if len(data) < _REDO.size + _CRC.size:
        yield Item("transaction redo log", {"meaning": f"cut off: {len(data)} bytes"})
        return
    magic, *values = _REDO.unpack_from(data)
    is_whole = magic == _REDO_MAGIC and _CRC.unpack_from(data, _REDO.size)[0] == crc32(
        data[: _REDO.size]
    )
    covered = Covered(*values)
    fields: dict[str, object] = {
        "covered_offset": covered.offset,
        "last_offset": covered.last_offset,
        "last_stored": utc(covered.last_timestamp),
        "end_number": covered.end_number,
        "settled_before": covered.settled_before,
        "crc": "ok" if is_whole else "wrong: the table is rebuilt",
    }
    yield Item("transaction redo log", fields)


def dump_left_out(disk: Disk, path: str) -> Iterator[Item]:
    """Yield the unusable entries of a config file, one a line."""
    lines = content(disk, path).splitlines()
    yield Item("entries left out", {"count": len(lines)})
    for line in lines:
        try:
            found: Any = loads(line.decode("utf-8"))
            fields = {str(name): plain(str(value)) for name, value in found.items()}
        except (ValueError, AttributeError, RecursionError):
            fields = {"meaning": "damaged", "content": shortened(line)}
        yield Item("entry", dict(fields), counted=True)


def _checked(disk: Disk, path: str) -> tuple[Any, dict[str, object]]:
    """Return the readable value of a checked record, and the fields about its state."""
    line, _, crc = content(disk, path).rstrip(b"\n").rpartition(b"\n")
    is_whole = crc == b"%08x" % crc32(line)
    fields: dict[str, object] = {"crc": "ok" if is_whole else "wrong: without effect"}
    try:
        return loads_json(line), fields
    except (JSONDecodeError, UnicodeDecodeError, RecursionError):
        fields["meaning"] = "no JSON"
        return None, fields


def dump_queue_list(disk: Disk, path: str) -> Iterator[Item]:
    """Yield the queues that had units when the checkpoint was saved."""
    found, fields = _checked(disk, path)
    topics = found if isinstance(found, dict) else {}
    yield Item("list of queues", {**fields, "topics": len(topics)})
    for topic, queue_ids in topics.items():
        yield Item("queue", {"topic": plain(topic), "queue_ids": queue_ids}, counted=True)


def dump_format(disk: Disk, path: str) -> Iterator[Item]:
    """Yield the number of the store's format, and the first version that opens it."""
    found, fields = _checked(disk, path)
    held = found if isinstance(found, dict) else {}
    shown = {name: plain(str(held.get(name))) for name in ("format", "needs")}
    yield Item("format", {**fields, **shown})


def dump_sinks(disk: Disk, path: str) -> Iterator[Item]:
    """Yield the progress of the sinks of Spark queries at an offset of the log."""
    found, fields = _checked(disk, path)
    held = found if isinstance(found, dict) else {}
    lanes = held.get("lanes", [])
    yield Item("sinks", {**fields, "covered": held.get("covered"), "lanes": len(lanes)})
    for query, partition, topic, batch, sequence, chain, timestamp, *owner in lanes:
        shown = {"query": query, "partition": partition, "topic": plain(topic), "batch": batch}
        shown |= {"next": sequence, "chain": chain, "store_timestamp": timestamp}
        shown |= dict(zip(("owner",), owner, strict=False))
        yield Item("sink", shown, counted=True)


def dump_clean_stop(disk: Disk, path: str) -> Iterator[Item]:
    """Yield the record that the last clean stop left for the next start."""
    found, fields = _checked(disk, path)
    queues: object = None
    if isinstance(found, dict):
        queues = found.pop("queues", None)
        fields.update(found)
        if isinstance(found.get("storeTimestamp"), int):
            fields["storeTimestamp"] = utc(found["storeTimestamp"])
    yield Item("record of a clean stop", fields)
    for topic, numbers in queues.items() if isinstance(queues, dict) else ():
        for queue_id, offsets in numbers.items() if isinstance(numbers, dict) else ():
            own = {"topic": plain(topic), "queue_id": queue_id, "min_max_physical": offsets}
            yield Item("queue", own, counted=True)
