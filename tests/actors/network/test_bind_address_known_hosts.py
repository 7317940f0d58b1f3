"""Tests of actors/network/bind_address.py: Host names that an HTTP port answers."""

import pytest

from actors.config import BrokerConfig, NamesrvConfig, parse_broker_config
from actors.metrics import metrics_server
from actors.metrics.metrics_server import hosts_of
from actors.network.bind_address import KnownHosts


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:5557", "[::1]:5557", "[fd00::1]", "localhost", "LOCALHOST:1", "a.b:9"],
)
def test_requests_for_addresses_and_known_host_names_are_accepted(host: str) -> None:
    assert KnownHosts([" A.b. "]).knows(host)


@pytest.mark.parametrize(
    "host", ["", ":80", "evil.example", "a.b.evil.example", "127.0.0.1.evil.example", "a b"]
)
def test_requests_for_unknown_host_names_are_refused(host: str) -> None:
    assert not KnownHosts(["a.b", ""]).knows(host)
    assert KnownHosts(["*"]).knows(host) == bool(host.partition(":")[0])


def test_own_host_names_and_monitoringhosts_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_server, "gethostname", lambda: "Node-7")
    text = "brokerIP1=mq.example\nmonitoringHosts=prometheus-target, other.example\n"
    config, _, _ = parse_broker_config(text)
    hosts = hosts_of(config)
    for known in ("node-7:1", "mq.example", "prometheus-target:5557", "other.example"):
        assert hosts.knows(known)
    for default in (BrokerConfig(), NamesrvConfig()):
        assert hosts_of(default).knows("node-7")
        assert not hosts_of(default).knows("evil.example"), "bindAddress=* is no name"
