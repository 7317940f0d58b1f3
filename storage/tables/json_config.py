"""A JSON config file, its previous version NAME.bak, and their checksums NAME.crc.

A save writes and syncs NAME.tmp, keeps the content of NAME as NAME.bak with the same care, renames,
and syncs the directory. A power cut leaves the old version or the new one. A load finds the newest
usable version; the checksums identify a single flipped bit, which is corrected.

The next save keeps unusable files as NAME.broken, and unusable entries as lines of NAME.left-out.
That file is bounded: the oldest lines are dropped first. A load changes nothing.

Source: common/ConfigManager.java, MixAll.java (string2File).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from errno import EBADMSG, EIO, EISDIR
from typing import Generic, TypeVar

from protocol.errors import RemoteError
from protocol.fastjson import loads
from protocol.fastjson_limits import FastjsonError
from storage.errors import store_error
from storage.files.disk import Disk
from storage.tables.crc_sidecar import Digest, Sidecar, without_flipped_bit
from storage.tables.skipped_entry import LeftOuts, Parse, SkippedEntry, put_back

T = TypeVar("T")

_DAMAGE = {EBADMSG, EIO, EISDIR}
"""Errors of a read that are the file's fault, not that of this process or its permissions."""
_SIDECAR_BYTES_MAX = 4096
LEFT_OUT_BYTES_MAX = 32 << 20
"""Limit of one side file: more than any one request can bring."""


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    value: T | None = None
    """None if no version is usable, or none exists."""
    is_newest: bool = True
    """Whether `value` is the last saved version, as far as known."""
    broken: tuple[str, ...] = ()
    """Unusable files; `save` takes them, to keep them aside."""
    findings: str = ""
    """Faults and the version used instead; empty without faults."""
    left_out: tuple[SkippedEntry, ...] = ()
    """Unusable entries, which `save` takes, too.

    For these, `value` has the entries of the previous version if they are usable, else nothing.
    """

    @property
    def is_to_be_saved(self) -> bool:
        """Whether saving `value` would repair the file."""
        return bool(self.broken or self.left_out)


def load(disk: Disk, path: str, parse: Parse[T]) -> Loaded[T]:
    """Return the newest version that `parse` accepts, perhaps without some of its entries.

    Raise StoreError only if this process may not read the file.
    """
    backup = f"{path}.bak"
    sidecar = _sidecar(disk, path)
    broken: list[str] = []
    findings: list[str] = []
    for each in (path, backup):
        data, fault = _read(disk, each)
        if fault:
            broken.append(each)
        elif data is None:
            continue
        elif not data.strip():
            fault = "is empty"
        else:
            text, flipped = _intact(disk, path, data, sidecar, each)
            left_out: LeftOuts = []
            value, fault = _parsed(text, parse, left_out)
            if value is not None and flipped:
                findings.append(f"{each} had one flipped bit, found by {path}.crc: corrected")
            if fault or flipped:
                broken.append(each)
            if left_out and each == path:
                previous = _previous(disk, backup, sidecar, path)
                value, left_out = _completed(text, previous, value, left_out, parse)
            if value is not None:
                if each == backup:
                    findings = findings or [f"{path} is missing"]
                    findings.append("its previous version is used")
                is_newest = each == path
                found = "; ".join(findings)
                return Loaded(value, is_newest, tuple(broken), found, tuple(left_out))
        findings.append(f"{each} {fault}")
    if findings:
        findings.append("no version is usable")
    return Loaded(None, not findings, tuple(broken), "; ".join(findings))


def _previous(disk: Disk, backup: str, sidecar: Sidecar | None, path: str) -> bytes | None:
    """Return the .bak as it was saved, if it can be read."""
    data, _ = _read(disk, backup)
    return None if data is None else _intact(disk, path, data, sidecar, backup)[0]


def _completed(
    text: bytes, previous: bytes | None, value: T | None, left_out: LeftOuts, parse: Parse[T]
) -> tuple[T | None, LeftOuts]:
    """Return the table with the previous version's entries for those left out."""
    if previous is None:
        return value, left_out
    try:
        return put_back(text, previous, left_out, parse) or (value, left_out)
    except (RemoteError, ValueError, OverflowError, RecursionError):
        return value, left_out


def parsed_object(text: str | bytes, _: LeftOuts | None = None) -> dict[object, object]:
    """Return the JSON object in `text` (a Parse). Raise ValueError."""
    value = loads(text)
    if not isinstance(value, dict):
        raise FastjsonError("it is not a JSON object")
    return value


def parsed_table(
    text: str | bytes, name: str
) -> tuple[Mapping[object, object], Mapping[object, object]]:
    """Return the JSON object in `text` and its table `name`. Raise ValueError."""
    found = parsed_object(text)
    table = found.get(name)
    if not isinstance(table, dict):
        raise FastjsonError(f"it has no table {name}")
    return found, table


def _read(disk: Disk, path: str) -> tuple[bytes | None, str]:
    """Return the content of a file, None for a missing one, and its fault."""
    try:
        if disk.is_dir(path):
            return None, "is a directory"
        return disk.read_bytes(path), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        if error.errno in _DAMAGE:
            return None, f"cannot be read ({error.strerror})"
        raise store_error("cannot read a config file", error) from error


def _sidecar(disk: Disk, path: str) -> Sidecar | None:
    """Return the checksums; None if they are missing or unusable."""
    try:
        data = disk.read_bytes(f"{path}.crc")
    except OSError:
        return None
    return Sidecar.decode(data) if len(data) <= _SIDECAR_BYTES_MAX else None


def _intact(
    disk: Disk, path: str, data: bytes, sidecar: Sidecar | None, own: str
) -> tuple[bytes, bool]:
    """Return the content as it was saved, and whether a bit was corrected.

    A difference from the checksums is another broker's change if the .bak has changed as well and
    the text is JSON: two of its versions may differ in one bit.
    """
    if sidecar is None or sidecar.knows(data):
        return data, False
    expected = sidecar.newest if own == path else sidecar.previous
    if expected is None:
        return data, False
    if own == path and not sidecar.was_left_alone(_read(disk, f"{path}.bak")[0]):
        value, _ = _parsed(data, parsed_object)
        if value is not None:
            return data, False
    corrected = without_flipped_bit(data, expected)
    return (data, False) if corrected is None else (corrected, True)


def _parsed(data: bytes, parse: Parse[T], left_out: LeftOuts | None = None) -> tuple[T | None, str]:
    """Return the parsed value of a content, and its fault."""
    try:
        return parse(data.decode("utf-8"), left_out), ""
    except RemoteError as error:  # fault found by the bodies, as in a peer's message
        return None, f"cannot be used ({error.remark})"
    except (ValueError, OverflowError, RecursionError) as error:
        return None, f"cannot be used ({error})"


def save(
    disk: Disk,
    path: str,
    text: str,
    broken: Collection[str] = (),
    left_out: Collection[SkippedEntry] = (),
) -> bool:
    """Save `text` as the file's content, durably; return False if it was saved already.

    The previous content becomes the .bak, unless it is not JSON or among the `broken` files of
    `load`. The `left_out` entries are saved first. Raise StoreError and leave the file as it was.
    """
    data = text.encode("utf-8", "replace")
    was_damaged = False
    try:
        if left_out:
            _keep_left_out(disk, path, left_out)
        sidecar = _sidecar(disk, path)
        previous, fault = _read(disk, path)
        directory = path.rpartition("/")[0] or "."  # a name server may have a bare name
        disk.make_dirs(directory)
        if previous == data and sidecar is not None and sidecar.newest == Digest.of(data):
            disk.sync_directory(directory)  # the save before may have failed at its last step
            return False
        _write(disk, f"{path}.tmp", data)
        if previous == data:
            backup, _ = _read(disk, f"{path}.bak")
        elif not fault and _is_good(path, previous, sidecar, broken):
            assert previous is not None
            backup = previous
            _write(disk, f"{path}.bak.tmp", previous)
            _replace(disk, f"{path}.bak.tmp", f"{path}.bak")
            # Sync now: else the directory might keep the new name of one and the old name of the
            # other.
            disk.sync_directory(directory)
        else:
            backup = _keep_aside(disk, path, previous, broken)
            was_damaged = True
        versions = Sidecar(Digest.of(data), None if backup is None else Digest.of(backup))
        _write(disk, f"{path}.crc.tmp", versions.encode(path.rpartition("/")[2]))
        if was_damaged:  # the old checksums may still be needed for the old content
            _replace(disk, f"{path}.tmp", path)
            disk.sync_directory(directory)
        _replace(disk, f"{path}.crc.tmp", f"{path}.crc")
        if not was_damaged:
            _replace(disk, f"{path}.tmp", path)
        disk.sync_directory(directory)
    except OSError as error:
        raise store_error(f"cannot save {path}", error) from error
    return True


def _is_good(
    path: str, previous: bytes | None, sidecar: Sidecar | None, broken: Collection[str]
) -> bool:
    """Return whether the present content may become the .bak."""
    if previous is None:
        return False
    if sidecar is not None and sidecar.knows(previous):
        return True  # checksums prove a valid save, whatever was found before it
    return path not in broken and _parsed(previous, parsed_object)[0] is not None


def _keep_aside(
    disk: Disk, path: str, previous: bytes | None, broken: Collection[str]
) -> bytes | None:
    """Keep broken content under another name; return the content of the .bak."""
    if previous is not None and previous.strip():
        _write(
            disk, f"{path}.broken", previous
        )  # a copy: the original counts until the new file exists
    elif previous is None and disk.exists(path):
        disk.rename(path, _free_name(disk, f"{path}.broken"))
    backup_path = f"{path}.bak"
    if backup_path in broken and disk.exists(backup_path):
        disk.rename(backup_path, _free_name(disk, f"{backup_path}.broken"))
        return None
    return _read(disk, backup_path)[0]


def left_out_path(path: str) -> str:
    """Return the side file of a config file: a JSON object in each line, the newest last."""
    return f"{path}.left-out"


def _keep_left_out(disk: Disk, path: str, left_out: Collection[SkippedEntry]) -> None:
    """Add entries to the side file, each only once."""
    side_path = left_out_path(path)
    known = (_read(disk, side_path)[0] or b"").splitlines(keepends=True)
    lines = dict.fromkeys([*known, *(each.line() for each in left_out)])
    if len(lines) == len(known):
        return
    kept: list[bytes] = []
    room = LEFT_OUT_BYTES_MAX
    for line in reversed(lines):
        room -= len(line)
        if room < 0:
            break
        kept.append(line)
    disk.make_dirs(path.rpartition("/")[0])
    _write(disk, f"{side_path}.tmp", b"".join(reversed(kept)))
    _replace(disk, f"{side_path}.tmp", side_path)
    disk.sync_directory(path.rpartition("/")[0])


def _replace(disk: Disk, source: str, target: str) -> None:
    """Rename a file; keep a directory in the way aside."""
    if disk.is_dir(target):
        disk.rename(target, _free_name(disk, f"{target}.broken"))
    disk.rename(source, target)


def _free_name(disk: Disk, path: str) -> str:
    """Return `path`, with a number if a directory has that name."""
    names = (path, *(f"{path}.{number}" for number in range(2, 100)))
    return next((name for name in names if not disk.is_dir(name)), path)


def _write(disk: Disk, path: str, data: bytes) -> None:
    if disk.is_dir(path):
        disk.rename(path, _free_name(disk, f"{path}.broken"))
    file = disk.open(path, create=True)
    try:
        file.set_size(0)
        file.pwrite(data, 0)
        file.sync()
    finally:
        file.close()
