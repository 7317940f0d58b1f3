"""The official mqadmin works against the server: what it prints, and that it ends well."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.admin_shell import mqadmin_in_one_java
from tests.compat.conftest import wait_for_route
from tests.compat.mqadmin import Mqadmin, mqadmin
from tests.compat.patience import wait_until
from tests.compat.remoting import has_key
from tests.compat.servers import BROKER_NAME, CLUSTER, Broker
from tests.compat.toolchain import Java
from tests.support.brokers import send_command
from tests.support.wire import Wire

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
def run(java_tools: Java, scratch: Path, broker: Broker) -> Iterator[Mqadmin]:
    with mqadmin_in_one_java(java_tools, scratch, broker.name_server.address) as run:
        yield run


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output after a check of the exit: a failure of mqadmin is a trace on stderr."""
    assert done.returncode == 0, done.stderr
    assert "Exception" not in done.stderr, done.stderr
    return done.stdout.strip()


def topic_line(topic: str, queues: int) -> str:
    return (
        f"TopicConfig [topicName={topic}, readQueueNums={queues}, writeQueueNums={queues}, "
        "perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false]"
    )


def test_update_topic_creates_it_on_a_broker_and_changes_it(
    java_tools: Java, scratch: Path, broker: Broker
) -> None:
    """Each command in a Java of its own, as people start it: it ends by itself."""
    run = mqadmin(java_tools, scratch, broker.name_server.address)
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


def test_topicroute_reports_an_unknown_topic(run: Mqadmin) -> None:
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


UNIQUE = "FD000000000000000000000000000002148A30946E0965{number:010X}"


def stored_messages(broker: Broker, topic: str) -> list[str]:
    """Sends three messages with keys; the offset ids that the broker gave them."""
    with Wire(broker.address) as wire:
        answers = [
            wire.ask(
                send_command(
                    b"body %d" % number,
                    topic=topic,
                    queue_id=number,
                    properties=f"KEYS\x01all k{number}\x02UNIQ_KEY\x01"
                    + UNIQUE.format(number=number),
                )
            )
            for number in range(3)
        ]
    assert [answer.code for answer in answers] == [0, 0, 0]
    wait_until(lambda: has_key(broker.address, topic, "k2"), "the last one in the index")
    return [(answer.fields or {})["msgId"] for answer in answers]


def lines_of(text: str) -> dict[str, str]:
    """`Name:   value` by name."""
    pairs = (line.partition(":") for line in text.splitlines() if ": " in line)
    return {name: value.strip() for name, _, value in pairs}


def test_messages_are_found_by_key_by_id_and_by_unique_key(run: Mqadmin, broker: Broker) -> None:
    topic = "IT-admin-query"
    printed(run("updateTopic", "-b", broker.address, "-t", topic, "-r", "4", "-w", "4"))
    wait_for_route(broker, topic)
    ids = stored_messages(broker, topic)
    unique = UNIQUE.format(number=1)
    head, row = printed(run("queryMsgByKey", "-t", topic, "-k", "k1")).splitlines()
    assert head.split() == ["#Message", "ID", "#QID", "#Offset"]
    assert row.split() == [unique, "1", "0"]
    _, *rows = printed(run("queryMsgByKey", "-t", topic, "-k", "all")).splitlines()
    assert sorted(row.split()[1] for row in rows) == ["0", "1", "2"]
    for done in (
        run("queryMsgById", "-i", ids[1]),
        run("queryMsgByUniqueKey", "-t", topic, "-i", unique),
    ):
        assert done.returncode == 0, done.stderr
        shown = lines_of(done.stdout)
        assert (shown["Topic"], shown["Keys"], shown["Queue ID"]) == (topic, "[all k1]", "1")
        assert shown["CommitLog Offset"] == str(int(ids[1][-16:], 16))
        assert f"UNIQ_KEY={unique}" in shown["Properties"]


def test_missing_messages_are_not_found(run: Mqadmin, broker: Broker) -> None:
    topic = "IT-admin-query-nothing"
    printed(run("updateTopic", "-b", broker.address, "-t", topic, "-r", "4", "-w", "4"))
    wait_for_route(broker, topic)
    done = run("queryMsgByKey", "-t", topic, "-k", "nobody")
    assert "CODE: 208  DESC: query message by key finished, but no message." in done.stderr
    sent = stored_messages(broker, topic)[0]
    done = run("queryMsgById", "-i", sent[:-16] + f"{1 << 40:016X}")
    assert f"can not find message by the offset, {1 << 40}" in done.stdout + done.stderr
