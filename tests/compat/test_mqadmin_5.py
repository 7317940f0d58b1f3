"""mqadmin 5.5.0 works with our servers, for a group that receives by POP and one that pulls."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.agent import Agent, closing, java_agent
from tests.compat.conftest import MakeBroker
from tests.compat.corpus import Outgoing
from tests.compat.groups import receive
from tests.compat.patience import wait_until
from tests.compat.servers import CLUSTER, Broker, OurNameServer
from tests.compat.toolchain import Java

pytestmark = pytest.mark.whole

TOPIC, POPS, PULLS = "Five", "five-pops", "five-pulls"
COUNT = 6
IN_FLIGHT = 6
"""Column of consumerProgress."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, make_broker: MakeBroker) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("mqadmin-5")
    with (
        OurNameServer(folder / "names") as names,
        make_broker("ours", folder / "broker", names) as broker,
    ):
        yield broker


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, java_5_tools: Java, broker: Broker
) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("mqadmin-5-shell")
    with admin_shell(java_5_tools, folder, broker.name_server.address) as shell:
        place = ("-b", broker.address)
        assert "success" in shell("updateTopic", *place, "-t", TOPIC, "-r", "4", "-w", "4")
        for group in (POPS, PULLS):
            assert "success" in shell("updateSubGroup", *place, "-g", group)
        mode = ("-t", TOPIC, "-g", POPS, "-m", "POP", "-q", "3")
        assert "success" in shell("setConsumeMode", "-c", CLUSTER, *mode)
        yield shell


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, java_5_tools: Java, broker: Broker, run: Shell
) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("mqadmin-5-client")
    with closing(java_agent("five", java_5_tools, folder, broker)) as agent:
        agent.join("pops", POPS, TOPIC, popInvisibleTime=10_000)
        agent.join("pulls", PULLS, TOPIC)
        messages = [Outgoing(f"m{number}", b"x", keys=f"k{number}") for number in range(COUNT)]
        agent.send("sync", TOPIC, messages, group="five-producers")
        for member in ("pops", "pulls"):
            receive(agent, member, COUNT)
        yield agent


COMMANDS = """
clusterList
topicList
topicRoute -t Five
topicStatus -t Five
topicClusterList -t Five
brokerStatus -b {broker}
consumerProgress
consumerStatus -g five-pops
consumerStatus -g five-pulls
consumerConnection -g five-pops
producerConnection -g five-producers -t Five
producer -b {broker}
getConsumerConfig -g five-pops
queryMsgByKey -t Five -k k1
queryMsgByOffset -t Five -b broker-a -i 0 -o 0
printMsg -t Five
queryCq -t Five -q 0 -i 0 -c 1
statsAll
skipAccumulatedMessage -g five-pulls -t Five
resetOffsetByTime -g five-pops -t Five -s now
brokerConsumeStats -b {broker}
checkMsgSendRT -t Five -a 3 -s 10
sendMessage -t Five -p x
exportMetadata -c DefaultCluster -f {folder}
exportMetrics -c DefaultCluster -f {folder}
cleanUnusedTopic -b {broker}
"""


@pytest.mark.parametrize("line", COMMANDS.strip().splitlines())
def test_a_command_succeeds(
    line: str, run: Shell, client: Agent, broker: Broker, tmp_path: Path
) -> None:
    told = run(*line.format(broker=broker.address, folder=tmp_path).split())
    assert told and "Exception" not in told


@pytest.mark.parametrize("group", [POPS, PULLS])
def test_nothing_is_in_flight_when_all_is_consumed(group: str, run: Shell, client: Agent) -> None:
    def in_flight() -> set[str]:
        lines = run("consumerProgress", "-g", group).splitlines()
        return {line.split()[IN_FLIGHT] for line in lines if line.startswith(TOPIC)}

    wait_until(lambda: in_flight() == {"0"}, f"all of {group} settled")
