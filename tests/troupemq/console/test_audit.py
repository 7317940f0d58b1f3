"""The audit log stays valid lines of JSON with any text."""

import json
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import pytest

from storage.errors import StoreError
from troupemq.console.audit import TEXT_CHARS_MAX, AuditLog


def test_audit_entries_are_listed_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "audit.log"
    log = AuditLog(path)
    log.note("ada", "admin", "127.0.0.1", "topic", given={"topic": "T"}, said=[], result="done")
    log.note("bob", "viewer", "::1", "login", result="refused")
    assert path.stat().st_mode & 0o777 == 0o600
    newest, oldest = log.newest(10)
    assert (newest["who"], newest["what"], newest["result"]) == ("bob", "login", "refused")
    assert oldest["given"] == {"topic": "T"} and "said" not in oldest
    assert log.newest(1) == [newest]
    log.close()


def test_hostile_text_stays_on_one_line_and_is_truncated(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    log.note("a\n{}\u2028\x1b[2J", "admin", "-", "x", said=["y" * 10_000], line="z" * 10_000)
    (line,) = (tmp_path / "audit.log").read_bytes().splitlines()
    assert line.isascii() and b"\x1b" not in line
    found = json.loads(line)
    assert found["who"] == "a\n{}\u2028\x1b[2J" and len(found["line"]) == TEXT_CHARS_MAX
    log.close()


def test_an_audit_log_with_a_partial_line_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text('ted": 1}\n[]\n{"who": "a"}\n{"who"')
    log = AuditLog(path)
    assert log.newest(5) == [{"who": "a"}]
    log.note("ada", "admin", "-", "login")
    assert [each["who"] for each in log.newest(5)] == ["ada", "a"]
    log.close()


def test_an_entry_cut_by_a_full_disk_is_an_error_and_spoils_no_later_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    log.note("ada", "admin", "-", "login")
    before = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
    try:
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot be written"):
                log.note("bob", "admin", "-", "topic", result="begun")
    finally:
        setrlimit(RLIMIT_FSIZE, before)
    log.note("eve", "admin", "-", "logout")
    log.note("joe", "admin", "-", "login")
    assert [each["who"] for each in log.newest(5)] == ["joe", "eve", "ada"]
    log.close()


def test_a_failed_write_is_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        AuditLog(tmp_path / "file" / "audit.log")
