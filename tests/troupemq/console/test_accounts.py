"""Accounts are created once and stored as hashes."""

import json
from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.files.disk import RealDisk
from troupemq.console.accounts import SCRYPT, Accounts, Viewer, name_fault, role_fault


def test_the_first_start_creates_one_admin_without_storing_the_password(tmp_path: Path) -> None:
    path = tmp_path / "accounts.json"
    first = Accounts(path)
    assert first.users() == {"admin": "admin"}
    password = first.first_password
    assert password is not None and password not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    again = Accounts(path)
    assert again.first_password is None
    assert again.check("admin", password) == Viewer("admin", "admin")
    assert again.check("admin", password + "x") is None
    assert again.check("nobody", password) is None


def test_a_password_check_costs_32_mib() -> None:
    assert SCRYPT["n"] * SCRYPT["r"] * 128 == 32 << 20


def test_every_password_has_its_own_salt(accounts: Accounts, tmp_path: Path) -> None:
    accounts.new_password("a", "viewer")
    accounts.new_password("b", "viewer")
    for name in "ab":
        accounts.set_password(name, "the same password")
    users = json.loads((tmp_path / "accounts.json").read_text())["users"]
    assert users["a"]["hash"] != users["b"]["hash"]


def test_the_only_admin_cannot_be_removed(accounts: Accounts) -> None:
    accounts.new_password("reader", "viewer")
    assert not accounts.remove_user("admin")
    accounts.new_password("second", "admin")
    assert accounts.remove_user("admin")
    assert accounts.users() == {"reader": "viewer", "second": "admin"}
    assert not accounts.remove_user("admin")


def test_a_token_is_valid_until_it_is_removed(accounts: Accounts, tmp_path: Path) -> None:
    token = accounts.new_token("ci", "operator")
    assert token not in (tmp_path / "accounts.json").read_text()
    found = Accounts(tmp_path / "accounts.json").of_token(token)
    assert found is not None and (found.role, found.by_token) == ("operator", True)
    assert accounts.of_token(token + "x") is None and accounts.of_token("") is None
    assert accounts.remove_token("ci") and not accounts.remove_token("ci")
    assert accounts.of_token(token) is None


def test_each_role_includes_the_roles_before_it() -> None:
    may = {
        role: [Viewer("x", role).may(each) for each in ("viewer", "operator", "admin")]
        for role in ("viewer", "operator", "admin")
    }
    assert may == {
        "viewer": [True, False, False],
        "operator": [True, True, False],
        "admin": [True, True, True],
    }


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"users": {"a": {}}, "tokens": {}}', '{"users": 1}']
)
def test_a_damaged_file_is_an_error_and_creates_no_password(tmp_path: Path, text: str) -> None:
    path = tmp_path / "accounts.json"
    path.write_text(text)
    with pytest.raises(StoreError, match="not a valid accounts file"):
        Accounts(path)
    assert path.read_text() == text


def test_an_unwritable_folder_is_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot save .*a file is in the way: move it"):
        Accounts(tmp_path / "file" / "accounts.json")


def test_a_removed_user_stays_removed_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was not synced, so that the former file could come back."""
    accounts = Accounts(tmp_path / "accounts.json")
    accounts.new_password("bob", "viewer")
    synced: list[str] = []
    monkeypatch.setattr(RealDisk, "sync_directory", lambda _, path: synced.append(path))
    assert accounts.remove_user("bob")
    assert synced == [str(tmp_path)]
    assert (tmp_path / "accounts.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["", " a", "a\n", "\x1b[31m", "a" * 65])
def test_a_user_name_must_be_short_and_printable(name: str) -> None:
    assert name_fault(name) is not None and name_fault("Ada Lovelace") is None
    assert role_fault("root") is not None and role_fault("admin") is None
