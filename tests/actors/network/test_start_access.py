"""The access that a server starts with."""

import pytest
from structlog.testing import capture_logs

from actors.config import NamesrvConfig
from actors.network.start_access import warn_if_open


@pytest.mark.parametrize(
    ("address", "is_guarded", "warnings"),
    [("0.0.0.0", False, 1), ("0.0.0.0", True, 0), ("127.0.0.1", False, 0), ("localhost", False, 0)],
)
def test_a_port_for_everybody_without_accounts_is_warned_of(
    address: str, is_guarded: bool, warnings: int
) -> None:
    with capture_logs() as logs:
        warn_if_open(NamesrvConfig(acl_enable=is_guarded), address)
    assert [each["listens_at"] for each in logs] == [address] * warnings


@pytest.mark.parametrize(
    ("address", "ha_address", "named", "at"),
    [
        ("0.0.0.0", "0.0.0.0", True, "0.0.0.0"),
        ("0.0.0.0", "127.0.0.1", False, "0.0.0.0"),
        ("0.0.0.0", "", False, "0.0.0.0"),
        ("127.0.0.1", "10.0.0.1", True, "10.0.0.1"),
        ("127.0.0.1", "127.0.0.2", False, None),
    ],
)
def test_the_warning_names_a_port_of_replication_for_everybody(
    address: str, ha_address: str, named: bool, at: str | None
) -> None:
    for is_guarded in (False, True):
        with capture_logs() as logs:
            warn_if_open(NamesrvConfig(acl_enable=is_guarded), address, ha_address)
        assert [each["listens_at"] for each in logs] == ([at] if at and not is_guarded else [])
        assert any("haAllowedAddresses" in each["event"] for each in logs) == (
            named and not is_guarded
        )
