"""All files together: which counts, and how one is written so that a power cut loses nothing."""

import os
import stat
from errno import EIO
from pathlib import Path

import pytest

from storage.access.acl_file import AclFileError
from storage.access.acl_files import (
    parse_texts,
    read_texts,
    save_acl_file,
    with_account,
    without_account,
)
from storage.access.acl_yaml import parse_acl_file
from storage.errors import StoreError
from storage.files.disk import RealDisk
from troupemq.testing.fake_disk import FakeDisk

DEFAULT = "/conf/plain_acl.yml"


def entry(name: str, secret: str = "secret12", **more: str) -> str:
    pairs = {"accessKey": name, "secretKey": secret, **more}
    return "{" + ", ".join(f"{key}: {value}" for key, value in pairs.items()) + "}"


def text(*entries: str) -> bytes:
    return f"accounts: [{', '.join(entries)}]".encode()


def test_files_below_acl_come_first_at_any_depth_and_the_first_account_counts() -> None:
    disk = FakeDisk()
    disk.make_dirs("/conf/acl/team")
    save_acl_file(disk, DEFAULT, text(entry("account1"), entry("account2", admin="true")))
    save_acl_file(disk, "/conf/acl/b.yaml", text(entry("account2")))
    save_acl_file(disk, "/conf/acl/team/a.yml", text(entry("account3")))
    save_acl_file(disk, "/conf/acl/notes.txt", b"no YAML: [")
    texts = read_texts(disk, DEFAULT)
    assert list(texts) == ["/conf/acl/b.yaml", "/conf/acl/team/a.yml", DEFAULT]
    snapshot = parse_texts(texts, takes_samples=False)
    assert sorted(snapshot.accounts) == ["account1", "account2", "account3"]
    assert not snapshot.accounts["account2"].admin
    assert snapshot.warnings == (f"{DEFAULT}: account account2 is in another file, too",)
    found = snapshot.file_of("account3")
    assert found is not None and found.path == "/conf/acl/team/a.yml"
    assert snapshot.file_of("nobody") is None


def test_a_misspelled_key_is_reported_with_a_suggestion() -> None:
    texts = {DEFAULT: text(entry("account1", whiteRemoteAdress="10.0.0.1", futureKey="x"))}
    (warning,) = parse_texts(texts, takes_samples=False).warnings
    unknown = "futureKey, whiteRemoteAdress (did you mean whiteRemoteAddress?)"
    assert warning == f"{DEFAULT}: unknown keys: {unknown}"


def test_well_known_accounts_are_refused_unless_they_are_wanted() -> None:
    texts = {DEFAULT: text(entry("rocketmq2", "12345678"))}
    with pytest.raises(AclFileError, match="account rocketmq2: its secret is public"):
        parse_texts(texts, takes_samples=False)
    assert parse_texts(texts, takes_samples=True).accounts


def test_a_deleted_default_acl_file_is_an_error_not_an_empty_file() -> None:
    """An editor may remove it for a moment, in which all clients would be refused."""
    with pytest.raises(StoreError, match="cannot read"):
        read_texts(FakeDisk(), DEFAULT)


def test_a_written_acl_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = str(tmp_path / "conf" / "plain_acl.yml")
    save_acl_file(RealDisk(), path, b"accounts: []")
    save_acl_file(RealDisk(), path, b"accounts: [] # again")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path / "conf") == ["plain_acl.yml"]


@pytest.mark.parametrize("operation", ["pwrite", "sync", "rename", "make_private"])
def test_a_failing_disk_leaves_the_old_acl_file(operation: str) -> None:
    disk = FakeDisk()
    save_acl_file(disk, DEFAULT, b"old")
    disk.fail_next(operation, OSError(EIO, "broken"))
    with pytest.raises(StoreError):
        save_acl_file(disk, DEFAULT, b"new")
    assert disk.read_bytes(DEFAULT) == b"old"


def test_a_change_keeps_the_keys_it_does_not_name() -> None:
    file = parse_acl_file(DEFAULT, text(entry("account1", admin="true", futureKey="1")))
    changed = with_account(file, "account1", {"admin": False, "secretKey": "another1"})
    assert changed["accounts"] == [
        {"accessKey": "account1", "secretKey": "another1", "admin": False, "futureKey": 1}
    ]
    gone = with_account(file, "account1", {"futureKey": None})
    assert "futureKey" not in gone["accounts"][0]
    assert without_account(file, "account1")["accounts"] == []
    assert file.raw["accounts"][0]["admin"] is True, "what was read is not changed"
