"""Tests of actors/network/start_access.py: access control at a server's start."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.config import BrokerConfig, NamesrvConfig
from actors.network.start_access import (
    opened_acl,
    warn_if_open,
    warn_if_plain_needs_no_certificate,
)
from tests.support.guarded import ACL_PATH, disk_with
from troupemq.testing.simulation import SimulatedSystem

CERTIFICATE = {"tls_server_certificate": "c", "tls_server_key": "k", "tls_server_trust": "t"}


@pytest.mark.parametrize(
    ("address", "is_guarded", "warnings"),
    [("0.0.0.0", False, 1), ("0.0.0.0", True, 0), ("127.0.0.1", False, 0), ("localhost", False, 0)],
)
def test_an_open_port_without_accounts_logs_a_warning(
    address: str, is_guarded: bool, warnings: int
) -> None:
    with capture_logs() as logs:
        warn_if_open(NamesrvConfig(acl_enable=is_guarded), address)
    assert [each["listens_at"] for each in logs] == [address] * warnings


@pytest.mark.parametrize("is_white_admin", [True, False])
def test_allowlisted_administrators_log_a_warning_at_a_start(is_white_admin: bool) -> None:
    system = SimulatedSystem(1, disk_with(), 1_700_000_000_000)
    settings = NamesrvConfig(acl_enable=True, acl_file=ACL_PATH, is_white_admin=is_white_admin)
    with capture_logs() as logs:
        opened_acl(system, settings, "")
    told = [
        each["because"] for each in logs if each["event"] == "allowlisted addresses may administer"
    ]
    assert told == ["aclWhiteListAdmin=true"] * is_white_admin
    system.stop()


CLIENTS, REPLICATION = "tls.server.mode", "tls.ha.mode"


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        (NamesrvConfig, {}, [CLIENTS]),
        (NamesrvConfig, {"tls_mode": "enforcing"}, []),
        (NamesrvConfig, {"tls_mode": "disabled"}, []),
        (NamesrvConfig, {"tls_client_auth": "optional"}, []),
        (NamesrvConfig, {"tls_test_mode": True}, []),
        (BrokerConfig, {}, [CLIENTS, REPLICATION]),
        (BrokerConfig, {"tls_mode": "enforcing", "tls_ha_mode": "enforcing"}, []),
        (BrokerConfig, {"tls_mode": "enforcing", "tls_ha_mode": "permissive"}, [REPLICATION]),
        (BrokerConfig, {"tls_mode": "enforcing"}, [REPLICATION]),
        (BrokerConfig, {"tls_mode": "enforcing", "acl_enable": True}, []),
        (BrokerConfig, {"tls_mode": "enforcing", "ha_allowed_addresses": "10.0.0.9"}, []),
        (BrokerConfig, {"tls_ha_mode": "permissive", "acl_enable": True}, [CLIENTS, REPLICATION]),
        (BrokerConfig, {"broker_role": "SLAVE", "broker_id": 1}, [CLIENTS]),
        (BrokerConfig, {"tls_client_auth": "none"}, []),
    ],
)
def test_a_port_open_to_clients_without_certificate_logs_a_warning(
    kind: type[BrokerConfig | NamesrvConfig], settings: dict[str, Any], named: list[str]
) -> None:
    config = kind(**{**CERTIFICATE, "tls_client_auth": "require", **settings})
    with capture_logs() as logs:
        warn_if_plain_needs_no_certificate(config)
    assert [each["hint"].removeprefix("set ") for each in logs] == [
        f"{name}=enforcing" for name in named
    ]
    assert {each["log_level"] for each in logs} <= {"warning"}
    assert {each["because"] for each in logs} <= {"tls.server.need.client.auth=require"}


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
def test_the_warning_names_an_open_replication_port(
    address: str, ha_address: str, named: bool, at: str | None
) -> None:
    for is_guarded in (False, True):
        with capture_logs() as logs:
            warn_if_open(NamesrvConfig(acl_enable=is_guarded), address, ha_address)
        assert [each["listens_at"] for each in logs] == ([at] if at and not is_guarded else [])
        assert any("haAllowedAddresses" in each["hint"] for each in logs) == (
            named and not is_guarded
        )
