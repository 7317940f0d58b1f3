"""The official mqadmin works against the server: what it prints, and that it ends well."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.compat.conftest import wait_for_route
from tests.compat.mqadmin import Mqadmin, mqadmin
from tests.compat.servers import BROKER_NAME, CLUSTER, Broker
from tests.compat.toolchain import Java

CLUSTER_COLUMNS = (
    "#Cluster Name",
    "#Broker Name",
    "#BID",
    "#Addr",
    "#Version",
    "#InTPS(LOAD)",
    "#OutTPS(LOAD)",
    "#PCWait(ms)",
    "#Hour",
    "#SPACE",
)
LOAD = r"\d+\.\d\d\(\d+,\d+ms\)"  # TPS (waiting requests, age of the oldest)
CLUSTER_ROW = rf"(\S+) +(\S+) +0 +(\S+) +V4_9_7 +{LOAD} +{LOAD} +\d+ +-?\d+\.\d\d +0\.\d{{4}}"
ROUTE = """{{
	"brokerDatas":[
		{{
			"brokerAddrs":{{0:"{address}"
			}},
			"brokerName":"{name}",
			"cluster":"{cluster}"
		}}
	],
	"filterServerTable":{{}},
	"queueDatas":[
		{{
			"brokerName":"{name}",
			"perm":{perm},
			"readQueueNums":{queues},
			"topicSysFlag":0,
			"writeQueueNums":{queues}
		}}
	]
}}"""


@pytest.fixture(scope="module")
def run(java_tools: Java, scratch: Path, broker: Broker) -> Mqadmin:
    return mqadmin(java_tools, scratch, broker.name_server.address)


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """What it printed, after a look at how it ended: a failure of mqadmin is a trace on stderr."""
    assert done.returncode == 0, done.stderr
    assert "Exception" not in done.stderr, done.stderr
    return done.stdout.strip()


def topic_line(topic: str, queues: int) -> str:
    return (
        f"TopicConfig [topicName={topic}, readQueueNums={queues}, writeQueueNums={queues}, "
        "perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false]"
    )


def test_update_topic_creates_it_on_a_broker_and_changes_it(run: Mqadmin, broker: Broker) -> None:
    topic = "IT-admin-broker"
    for queues in ("8", "16"):
        done = run("updateTopic", "-b", broker.address, "-t", topic, "-r", queues, "-w", queues)
        assert printed(done) == (
            f"create topic to {broker.address} success.\n{topic_line(topic, int(queues))}"
        )
    wait_for_route(broker, topic)
    assert printed(run("topicRoute", "-t", topic)) == ROUTE.format(
        address=broker.address, name=BROKER_NAME, cluster=CLUSTER, perm=6, queues=16
    )


def test_update_topic_creates_it_in_a_cluster_and_topic_route_lists_it(
    run: Mqadmin, broker: Broker
) -> None:
    topic = "IT-admin-cluster"
    done = run("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "3", "-w", "3")
    assert printed(done) == f"create topic to {broker.address} success.\n{topic_line(topic, 3)}"
    wait_for_route(broker, topic)
    columns, row, _, total = printed(run("topicRoute", "-l", "-t", topic)).splitlines()
    assert columns.split() == [
        "#ClusterName",
        "#BrokerName",
        "#BrokerAddrs",
        "#ReadQueue",
        "#WriteQueue",
        "#Perm",
    ]
    assert row.split() == [CLUSTER, BROKER_NAME, f"{{0={broker.address}}}", "3", "3", "6"]
    assert total.split() == ["Total:", "1", "3", "3"]


def test_update_topic_is_refused_for_a_system_topic(run: Mqadmin, broker: Broker) -> None:
    done = run("updateTopic", "-b", broker.address, "-t", "TBW102", "-r", "8", "-w", "8")
    assert "CODE: 1  DESC: The topic[TBW102] is conflict with system topic." in done.stderr


def test_topic_route_says_that_a_topic_is_unknown(run: Mqadmin) -> None:
    done = run("topicRoute", "-t", "IT-nobody-made-this")
    assert (
        "CODE: 17  DESC: No topic route info in name server for the topic: IT-nobody-made-this"
    ) in done.stderr


def test_cluster_list_shows_the_broker_with_its_version_and_load(
    run: Mqadmin, broker: Broker
) -> None:
    columns, *rows = printed(run("clusterList")).splitlines()
    assert tuple(re.split(r"\s{2,}", re.sub(r"\s+#", "  #", columns))) == CLUSTER_COLUMNS
    assert len(rows) == 1
    row = re.fullmatch(CLUSTER_ROW, rows[0].strip())
    assert row, rows[0]
    assert row.groups() == (CLUSTER, BROKER_NAME, broker.address)


@pytest.mark.parametrize("where", ["broker", "cluster"])
def test_update_sub_group_creates_a_group(where: str, run: Mqadmin, broker: Broker) -> None:
    group = f"IT-admin-group-{where}"
    place = ("-b", broker.address) if where == "broker" else ("-c", CLUSTER)
    done = run("updateSubGroup", *place, "-g", group, "-r", "5", "-q", "2", "-d", "true")
    assert printed(done) == (
        f"create subscription group to {broker.address} success.\n"
        f"SubscriptionGroupConfig [groupName={group}, consumeEnable=true, "
        "consumeFromMinEnable=false, consumeBroadcastEnable=true, retryQueueNums=2, "
        "retryMaxTimes=5, brokerId=0, whichBrokerWhenConsumeSlowly=1, "
        "notifyConsumerIdsChangedEnable=true]"
    )
