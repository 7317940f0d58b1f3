"""The address of this machine, which is part of the client's id."""

from collections.abc import Sequence
from socket import AF_INET, AF_INET6, SOCK_DGRAM, socket

import pytest

from troupemq.client.connection.client import local_ip


def names(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Have every name resolve to these addresses."""

    def found(_: str, port: int, *, type: int) -> Sequence[object]:
        families = [(AF_INET6 if ":" in host else AF_INET, host) for host in hosts]
        return [(family, type, 0, "", (host, port)) for family, host in families]

    monkeypatch.setattr("troupemq.client.connection.client.getaddrinfo", found)


def has_ipv6() -> bool:
    try:
        with socket(AF_INET6, SOCK_DGRAM) as probe:
            probe.connect(("::1", 9876))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_client_of_a_host_with_ipv6_alone_has_an_address_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All machines had the same id, 127.0.0.1 and the process id, which is 1 in a container."""
    names(monkeypatch, "::1")
    assert local_ip("namesrv.example:9876") == "::1"


def test_address_is_of_ipv4_where_the_host_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, "::1", "127.0.0.1")
    assert local_ip("namesrv.example:9876") == "127.0.0.1"


def test_unknown_host_leaves_the_loopback() -> None:
    assert local_ip(f"{'a' * 300}:9876") == "127.0.0.1"
