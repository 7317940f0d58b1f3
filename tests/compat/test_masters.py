"""Two masters under one process, as the official client and `mqadmin` see them: two brokers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.agent import closing, java_agent
from tests.compat.comparison import serial_of
from tests.compat.corpus import varied
from tests.compat.mqadmin import mqadmin
from tests.compat.patience import wait_until
from tests.compat.servers import CLUSTER, SMALL_FILES, OurMasters, OurNameServer
from tests.compat.toolchain import Java

NAMES = ["broker-a", "broker-a-1"]
TOPIC, QUEUES, COUNT = "IT-masters", 4, 48


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[OurMasters]:
    with (
        OurNameServer(tmp_path / "names") as names,
        OurMasters(tmp_path / "masters", names, len(NAMES), SMALL_FILES) as masters,
    ):
        yield masters


def test_the_official_client_sends_to_all_of_them_and_consumes_all(
    masters: OurMasters, java_tools: Java, tmp_path: Path
) -> None:
    run = mqadmin(java_tools, tmp_path, masters.name_server.address)
    listed = [line.split() for line in run("clusterList").stdout.splitlines()[1:]]
    assert {row[1]: row[3] for row in listed if row} == masters.addresses()
    assert list(masters.addresses()) == NAMES

    made = run("updateTopic", "-c", CLUSTER, "-t", TOPIC, "-r", str(QUEUES), "-w", str(QUEUES))
    assert made.returncode == 0, made.stderr
    route = run("topicRoute", "-t", TOPIC).stdout
    assert all(f'"brokerName":"{name}"' in route for name in NAMES)

    with closing(java_agent("java", java_tools, tmp_path, masters)) as agent:
        agent.join("member", f"group-of-{TOPIC}", TOPIC)
        sent = agent.send("sync", TOPIC, varied(TOPIC, COUNT))
        brokers = {result["brokerName"] for result in sent.results}
        assert brokers == set(NAMES)
        wait_until(lambda: len(agent.received("member")) >= COUNT, f"{COUNT} messages")
        got = {serial_of(event) for event in agent.received("member")}
    assert got == {message.serial for message in sent.messages}
