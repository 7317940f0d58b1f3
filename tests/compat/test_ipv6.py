"""The official tools, which are Java clients, at a broker that advertises an IPv6 address."""

from pathlib import Path
from socket import has_dualstack_ipv6

import pytest

from protocol.host import host_port
from tests.compat.mqadmin import mqadmin
from tests.compat.patience import wait_until
from tests.compat.servers import SMALL_FILES, OurBroker, OurNameServer
from tests.compat.toolchain import Java


class BrokerAtIpv6(OurBroker):
    """Broker whose address at the name server differs from the one the tests use."""

    def _serves(self) -> bool:
        return self._read_address()


@pytest.mark.whole
@pytest.mark.skipif(not has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_java_clients_reach_a_broker_by_the_ipv6_address_that_it_advertises(
    java_tools: Java, tmp_path: Path
) -> None:
    with OurNameServer(tmp_path / "names") as names:
        at_ipv6 = {"brokerIP1": "[::1]", "brokerIP2": "::1"}
        with BrokerAtIpv6(tmp_path / "broker", names, SMALL_FILES | at_ipv6) as broker:
            port = int(broker.address.rpartition(":")[2])
            run = mqadmin(java_tools, tmp_path, host_port("::1", int(names.address.split(":")[1])))
            wait_until(
                lambda: host_port("::1", port) in run("clusterList").stdout, "it is registered"
            )
            sent = run("sendMessage", "-t", "BenchmarkTest", "-p", "hello")
            assert "SEND_OK" in sent.stdout, sent.stdout + sent.stderr
            consumed = run("consumeMessage", "-t", "BenchmarkTest")
            assert "hello" in consumed.stdout, consumed.stdout + consumed.stderr
