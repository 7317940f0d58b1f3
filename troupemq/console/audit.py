"""Audit log of changes and logins, one JSON object a line.

time      UTC, ISO 8601
who       user or token, with `role` and `address`
what      login, logout, or the name of a change; `given`: its fields without secrets
line      the equal command line
result    begun, done, failed or refused; `said`: the answers, `before`: the state before
"""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from storage.errors import StoreError, reason_of

SHOWN_BYTES_MAX = 256 << 10
"""Bytes that a page reads from the end of the file."""

TEXT_CHARS_MAX = 2000


class AuditLog:
    """Audit log file, for any thread.

    Raises StoreError if it cannot be written; the caller then makes no change.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._is_torn = False
        """Whether the next entry begins a new line first."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._is_torn = _is_torn(self._file)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {reason_of(error)}.") from None

    def close(self) -> None:
        os.close(self._file)

    def note(self, who: str, role: str, address: str, what: str, **more: object) -> None:
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"time": time, "who": who, "role": role, "address": address, "what": what}
        line = json.dumps({**entry, **_short(more)}, ensure_ascii=True) + "\n"
        with self._lock:
            rest = b"\n" * self._is_torn + line.encode()
            try:
                while rest:  # a disk that becomes full takes a part first
                    rest = rest[os.write(self._file, rest) :]
                    self._is_torn = bool(rest)
            except OSError as error:
                raise StoreError(f"{self._path} cannot be written: {reason_of(error)}.") from None

    def newest(self, count: int) -> list[dict[str, object]]:
        """Return the last entries, the newest first."""
        with open(self._path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - SHOWN_BYTES_MAX))
            lines = file.read().splitlines()
        found = []
        for line in reversed(lines):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the first line may be incomplete
            if isinstance(entry, dict):
                found.append(entry)
            if len(found) == count:
                break
        return found


def _is_torn(file: int) -> bool:
    """Return whether the last line is incomplete, after a full disk or a power cut."""
    end = os.fstat(file).st_size
    return end > 0 and os.pread(file, 1, end - 1) != b"\n"


def _short(given: Mapping[str, object]) -> dict[str, object]:
    return {name: _cut(value) for name, value in given.items() if value not in (None, "", [], {})}


def _cut(value: object) -> object:
    if isinstance(value, Mapping):
        return _short(value)
    if isinstance(value, list | tuple):
        return [_cut(each) for each in value[:50]]
    return value[:TEXT_CHARS_MAX] if isinstance(value, str) else value
