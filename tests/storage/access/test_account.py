"""The account that a program shows: from its environment, or from a file as mqadmin's."""

from pathlib import Path

import pytest

from protocol.signature import Credentials
from storage.access.account import account_of_environment, account_of_file
from storage.errors import StoreError

WHOLE = {"TROUPEMQ_ACCESS_KEY": "an-account", "TROUPEMQ_SECRET_KEY": "its-secret"}


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: of-the-file\nsecretKey: 12345678\n")
    return path


def test_the_environment_may_name_an_account_or_an_account_file(tools: Path) -> None:
    assert account_of_environment({}) is None
    assert account_of_environment(WHOLE) == Credentials("an-account", "its-secret")
    lent = {**WHOLE, "TROUPEMQ_SECURITY_TOKEN": "lent"}
    assert account_of_environment(lent) == Credentials("an-account", "its-secret", "lent")
    named = {"TROUPEMQ_ACL_FILE": str(tools)}
    assert account_of_environment(named) == Credentials("of-the-file", "12345678")
    assert account_of_environment({**named, **WHOLE}) == Credentials("an-account", "its-secret")


@pytest.mark.parametrize("missing", WHOLE)
def test_half_an_account_is_refused_without_showing_it(missing: str) -> None:
    half = {name: value for name, value in WHOLE.items() if name != missing}
    with pytest.raises(StoreError, match="belong together") as refused:
        account_of_environment(half)
    assert "its-secret" not in str(refused.value)


def test_an_invalid_account_file_is_named_in_the_error(tmp_path: Path, tools: Path) -> None:
    with pytest.raises(StoreError, match="missing cannot be read: No such file"):
        account_of_file(str(tmp_path / "missing"))
    tools.write_text("accessKey: alone-here\n")
    with pytest.raises(StoreError, match=r"tools\.yml: accessKey and secretKey belong together"):
        account_of_file(str(tools))
    tools.write_text("accesKey: alone-here\nsecretKey: 12345678\n")
    with pytest.raises(StoreError, match=r"unknown key accesKey: did you mean accessKey\?"):
        account_of_file(str(tools))
    tools.write_text("# no account yet\n")
    assert account_of_file(str(tools)) is None
