"""Tests of actors/network/bind_address.py: both families by default, advertised addresses."""

import errno
from dataclasses import replace
from socket import AF_INET, AF_INET6, create_connection, create_server, has_dualstack_ipv6, socket
from typing import Any

import pytest

from actors.config import BrokerConfig, ConfigError, NamesrvConfig, parse_broker_config
from actors.network import bind_address
from actors.network.bind_address import listened_families, reached_at, require_listened
from actors.network.connections import PortTaken, open_listener, plain_address
from remoting import local_address as local_address_module
from remoting.local_address import local_address
from tests.support.brokers import BROKER

needs_ipv6 = pytest.mark.skipif(not has_dualstack_ipv6(), reason="this machine has no IPv6")


@needs_ipv6
@pytest.mark.parametrize("bind", [BrokerConfig().bind_address, NamesrvConfig().bind_address, "::"])
def test_a_server_listens_on_ipv4_and_ipv6_by_default(
    bind: str,
) -> None:
    with open_listener(bind, 0, "listenPort") as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            with create_connection((host, port)):
                accepted, remote = listener.accept()
                accepted.close()
                assert plain_address(remote)[0] == host


@pytest.mark.parametrize("fault", ["no sockets of IPv6", errno.EADDRNOTAVAIL])
def test_without_ipv6_in_the_kernel_a_server_listens_on_ipv4(
    fault: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_ipv4(*args: Any, **named: Any) -> socket:
        if named.get("dualstack_ipv6"):
            raise OSError(fault, "no address of IPv6")
        return create_server(*args, **named)

    if isinstance(fault, str):
        monkeypatch.setattr(bind_address, "has_dualstack_ipv6", lambda: False)
    else:
        monkeypatch.setattr(bind_address, "create_server", only_ipv4)
    with open_listener("*", 0, "listenPort") as listener:
        assert listener.family == AF_INET
    if not isinstance(fault, str):
        with pytest.raises(PortTaken, match="this machine has no such address"):
            open_listener("::", 0, "listenPort")


@needs_ipv6
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"broker_ip1": "::1", "bind_address": "0.0.0.0"},
            r"brokerIP1 is ::1 \(IPv6\), and the broker listens on IPv4 only \(bindAddress is"
            r" 0\.0\.0\.0\): set bindAddress=\* for both, or another brokerIP1\.",
        ),
        ({"broker_ip1": "[::1]", "bind_address": "127.0.0.1"}, "brokerIP1 is ::1 "),
        ({"bind_address": "::1", "ha_bind_address": "::1"}, "brokerIP1 is 127.0.0.1 .IPv4"),
        ({"broker_ip2": "fd00::1", "ha_bind_address": "127.0.0.1"}, "haBindAddress is 127.0.0.1"),
        ({"broker_ip2": "fd00::1", "bind_address": "127.0.0.1"}, "bindAddress is 127.0.0.1"),
    ],
)
def test_an_advertised_address_of_a_disabled_family_refuses_the_start(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        require_listened(replace(BROKER, **settings))


@needs_ipv6
@pytest.mark.parametrize(
    "settings",
    [
        {"broker_ip1": "::1", "broker_ip2": "[::1]"},
        {"broker_ip1": "127.0.0.1", "bind_address": "::"},
        {"broker_ip1": "::ffff:127.0.0.1", "bind_address": "0.0.0.0"},
        {"broker_ip1": "no.such.host.invalid", "bind_address": "0.0.0.0"},
        {"broker_ip2": "::1", "bind_address": "127.0.0.1", "broker_role": "SLAVE", "broker_id": 1},
    ],
)
def test_an_advertised_address_of_an_enabled_family_is_accepted(
    settings: dict[str, Any],
) -> None:
    require_listened(replace(BROKER, **settings))


def test_an_ipv6_address_is_not_advertised_without_ipv6_in_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bind_address, "has_dualstack_ipv6", lambda: False)
    with pytest.raises(ConfigError, match="this machine has no IPv6: set another brokerIP1"):
        require_listened(replace(BROKER, broker_ip1="::1"))


def test_addresses_in_settings_may_have_brackets() -> None:
    text = "brokerIP1=[::1]\nbindAddress=[::1]\nconsoleBindAddress=[::1]\n"
    config, _, _ = parse_broker_config(text)
    assert (config.broker_ip1, config.bind_address, config.console_bind_address) == ("::1",) * 3
    assert (config.broker_ip2, config.store_address()) == ("::1", "::1"), "where it listens"
    with pytest.raises(ConfigError, match="brokerIP1 is \\*: write a host's name or address"):
        parse_broker_config("brokerIP1=*")


def test_without_an_ipv4_address_the_global_ipv6_address_is_advertised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_address_module, "_interface_addresses", lambda: [("lo", "127.0.0.1")])
    monkeypatch.setattr(local_address_module, "_global_v6_addresses", lambda: iter(["fd00::7"]))
    assert local_address() == local_address("::") == "fd00::7"
    assert local_address("0.0.0.0") != "fd00::7"
    assert local_address("fd00::9") == "fd00::9"


def test_a_server_is_reachable_by_an_address_of_its_family() -> None:
    assert [reached_at(host) for host in ("*", "0.0.0.0", "::", "10.0.0.1")] == [
        *("127.0.0.1", "127.0.0.1", "::1", "10.0.0.1")
    ]
    assert listened_families("10.0.0.1") == {AF_INET}
    assert listened_families("fd00::1") == {AF_INET6}
