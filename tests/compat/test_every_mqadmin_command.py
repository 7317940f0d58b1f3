"""Every command of the official mqadmin does against ours what it does against its own servers.

Compared are how each ends, its headings, and how many columns and lines it prints; figures, ids
and times differ. Left out: `clusterRT`, which never ends, and access control, which neither has
switched on here.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.conftest import SERVER_KIND, MakeBroker, MakeNameServer, wait_for_route
from tests.compat.patience import wait_until
from tests.compat.servers import BROKER_NAME, CLUSTER, Broker
from tests.compat.toolchain import Java
from troupemq import Message, Producer, PushConsumer, SendResult

TOPIC, GROUP, KEY = "EV-topic", "EV-group", "EV-key"
COUNT = 8
NOT_COMPARED = {"clusterRT"} | {
    *("updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion"),
    *("updateGlobalWhiteAddr", "getAclConfig"),
}
FREE_FORM = {"brokerStatus", "getBrokerConfig", "getNamesrvConfig", "statsAll", "topicList"}
"""What these list depends on the settings and topics that a server has."""


def commands(broker: Broker, sent: SendResult, client: str, folder: Path) -> list[list[str]]:
    """Each command once at least, in an order in which they can follow each other."""
    at, by_broker = ["-b", broker.address], ["-b", BROKER_NAME]
    topic, group, cluster = ["-t", TOPIC], ["-g", GROUP], ["-c", CLUSTER]
    other = ["-t", "EV-other"]
    queue = ["-i", str(sent.queue.queue_id)]
    return [
        ["updateTopic", *cluster, *other, "-r", "2", "-w", "2"],
        ["updateTopicPerm", *at, *other, "-p", "4"],
        ["updateOrderConf", *other, "-m", "put", "-v", f"{BROKER_NAME}:2"],
        ["updateOrderConf", *other, "-m", "get"],
        ["updateOrderConf", *other, "-m", "delete"],
        ["topicRoute", *topic],
        ["topicRoute", *topic, "-l"],
        ["topicStatus", *topic],
        ["topicClusterList", *topic],
        ["topicList"],
        ["topicList", "-c"],
        ["allocateMQ", *topic, "-i", "10.0.0.1,10.0.0.2"],
        ["statsAll"],
        ["statsAll", *topic],
        ["updateSubGroup", *at, "-g", "EV-new", "-r", "5"],
        ["getConsumerConfig", "-g", "EV-new"],
        ["deleteSubGroup", *at, "-g", "EV-new", "-r", "true"],
        ["clusterList"],
        ["clusterList", "-m"],
        ["brokerStatus", *at],
        ["getBrokerConfig", *at],
        ["updateBrokerConfig", *at, "-k", "fileReservedTime", "-v", "49"],
        ["getNamesrvConfig"],
        ["updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true"],
        ["updateKvConfig", "-s", "EV", "-k", "k", "-v", "v"],
        ["deleteKvConfig", "-s", "EV", "-k", "k"],
        ["producerConnection", "-g", "EV-producers", *topic],
        ["producer", *at],
        ["consumerConnection", *group],
        ["consumerProgress", *group],
        ["consumerProgress", *group, "-s", "true"],
        ["consumerProgress"],
        ["consumerStatus", *group],
        ["consumerStatus", *group, "-i", client],
        ["brokerConsumeStats", *at],
        ["queryCq", *topic, "-q", "0", "-i", "0", "-c", "2", *at, "-g", GROUP],
        ["queryMsgById", "-i", sent.offset_message_id],
        ["queryMsgById", "-i", sent.offset_message_id, *group, "-d", client],
        ["queryMsgByKey", *topic, "-k", KEY],
        ["queryMsgByUniqueKey", *topic, "-i", sent.message_id],
        ["queryMsgByOffset", *topic, *by_broker, *queue, "-o", str(sent.queue_offset)],
        ["queryMsgTraceById", "-i", sent.message_id],
        ["printMsg", *topic],
        ["printMsgByQueue", *topic, "-a", BROKER_NAME, "-i", "0", "-p", "true", "-f", "true"],
        ["consumeMessage", *topic, *by_broker, "-i", "0", "-o", "0", "-c", "1"],
        ["sendMessage", *topic, "-p", "from mqadmin"],
        ["sendMsgStatus", *by_broker, "-s", "128", "-c", "2"],
        ["checkMsgSendRT", *topic, "-a", "3", "-s", "64"],
        ["cloneGroupOffset", "-s", GROUP, "-d", "EV-clone", *topic, "-o", "true"],
        ["resetOffsetByTime", *group, *topic, "-s", "now"],
        ["skipAccumulatedMessage", *group, *topic],
        ["exportMetadata", *cluster, "-f", str(folder)],
        ["exportConfigs", *cluster, "-f", str(folder)],
        ["exportMetrics", *cluster, "-f", str(folder)],
        ["cleanExpiredCQ", *at],
        ["cleanUnusedTopic", *at],
        ["deleteExpiredCommitLog", *at],
        ["wipeWritePerm", *by_broker],
        ["addWritePerm", *by_broker],
        ["deleteTopic", *cluster, *other],
        ["startMonitoring"],
    ]


@contextmanager
def inhabited(broker: Broker) -> Iterator[tuple[SendResult, str]]:
    """A topic with messages, a producer, and a consumer that has consumed them and stays."""
    namesrv, seen = broker.name_server.address, set[str]()
    with (
        Producer("EV-producers", namesrv) as producer,
        PushConsumer(
            GROUP, lambda views: seen.update(view.message_id for view in views), namesrv
        ) as consumer,
    ):
        results = [
            producer.send(Message(TOPIC, b"%d" % number, tags="A", keys=KEY))
            for number in range(COUNT)
        ]
        consumer.subscribe(TOPIC)
        wait_until(lambda: len(seen) == COUNT, "all of them consumed", 30)
        yield results[0], consumer.client_id


def shape(name: str, printed: str, folder: Path) -> list[str]:
    """How it ended, and its lines without what differs from run to run."""
    if "Exception" in printed:
        code = re.search(r"CODE: \d+", printed)
        return [f"fails {code.group() if code else ''}"]
    lines = [line.rstrip() for line in printed.replace(str(folder), "FOLDER").splitlines()]
    headings = [line for line in lines if line.startswith("#")]
    if name in FREE_FORM:
        return headings
    return headings + [str(len(line.split())) for line in lines if line and line[0] != "#"]


@pytest.mark.skipif(SERVER_KIND == "official", reason="compares the official servers with ours")
def test_every_command_ends_and_prints_as_with_the_official_servers(
    java_tools: Java,
    tmp_path: Path,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> None:
    found: dict[str, dict[str, list[str]]] = {}
    for kind in ("official", "ours"):
        scratch, folder = tmp_path / kind, tmp_path / f"export-{kind}"
        with (
            make_name_server(kind, scratch / "name-server") as name_server,
            make_broker(kind, scratch / "broker", name_server, traceTopicEnable="true") as broker,
            admin_shell(java_tools, scratch, name_server.address) as run,
        ):
            found[kind] = all_shapes(run, broker, folder)
    asked = {line.split()[0] for line in found["ours"]}
    text = (Path(__file__).parent / "mqadmin-commands.txt").read_text()
    assert asked == set(text.split()) - NOT_COMPARED
    differing = {
        line: (shown, found["ours"][line])
        for line, shown in found["official"].items()
        if shown != found["ours"][line]
    }
    assert differing == {}


def all_shapes(run: Shell, broker: Broker, folder: Path) -> dict[str, list[str]]:
    run("updateTopic", "-b", broker.address, "-t", TOPIC, "-r", "4", "-w", "4")
    wait_for_route(broker, TOPIC)
    found = {}
    with inhabited(broker) as (sent, client):
        wait_until(lambda: "Diff Total: 0" in run("consumerProgress", "-g", GROUP), "commits", 30)
        for name, *options in commands(broker, sent, client, folder):
            key = " ".join([name, *(option for option in options if option.startswith("-"))])
            found[key] = shape(name, run(name, *options), folder)
    return found
