"""The official mqadmin administers our name server and broker: what it prints, column by column.

What the original printed: golden wire/mqadmin-output.txt.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.conftest import wait_for_route
from tests.compat.patience import wait_until
from tests.compat.servers import BROKER_NAME, CLUSTER, Broker
from tests.compat.test_mqadmin import stored_messages
from tests.compat.toolchain import Java

SETTING = re.compile(r"^(\S+) += {2}(.*)$", re.MULTILINE)
FIGURE = re.compile(r"^(\S+?) *: (.*)$", re.MULTILINE)
FAILED = "Exception"


@pytest.fixture(scope="module")
def run(java_tools: Java, scratch: Path, broker: Broker) -> Iterator[Shell]:
    with admin_shell(java_tools, scratch, broker.name_server.address) as shell:
        yield shell


def make_topic(run: Shell, broker: Broker, topic: str, *options: str) -> None:
    assert FAILED not in run("updateTopic", "-b", broker.address, "-t", topic, *options)
    wait_for_route(broker, topic)


def test_a_topic_changes_its_permission(run: Shell, broker: Broker) -> None:
    make_topic(run, broker, "AD-perm", "-r", "8", "-w", "8")
    printed = run("updateTopicPerm", "-b", broker.address, "-t", "AD-perm", "-p", "4")
    assert printed == (
        f"update topic perm from 6 to 4 in {broker.address} success.\n"
        "TopicConfig [topicName=AD-perm, readQueueNums=8, writeQueueNums=8, perm=R--, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false]."
    )


def test_topics_are_listed_by_cluster_and_deleted(run: Shell, broker: Broker) -> None:
    make_topic(run, broker, "AD-delete", "-r", "2", "-w", "2")
    assert "AD-delete" in run("topicList").split()
    assert run("topicClusterList", "-t", "AD-delete") == CLUSTER
    assert run("deleteTopic", "-c", CLUSTER, "-t", "AD-delete") == (
        f"delete topic [AD-delete] from cluster [{CLUSTER}] success.\n"
        "delete topic [AD-delete] from NameServer success."
    )
    assert "AD-delete" not in run("topicList").split()
    assert "CODE: 17" in run("topicRoute", "-t", "AD-delete")
    assert "The topic[TBW102] is conflict with system topic." in run(
        "deleteTopic", "-c", CLUSTER, "-t", "TBW102"
    )


def test_a_group_is_created_and_deleted(run: Shell, broker: Broker) -> None:
    assert "success" in run("updateSubGroup", "-b", broker.address, "-g", "AD-group", "-r", "5")
    assert "AD-group" in run("getConsumerConfig", "-g", "AD-group")
    printed = run("deleteSubGroup", "-b", broker.address, "-g", "AD-group", "-r", "true")
    assert printed.splitlines()[0] == (
        f"delete subscription group [AD-group] from broker [{broker.address}] success."
    )
    assert "AD-group" not in run("getConsumerConfig", "-g", "AD-group")


def test_a_brokers_settings_are_shown_and_changed(run: Shell, broker: Broker) -> None:
    head, *lines = run("getBrokerConfig", "-b", broker.address).splitlines()
    assert head == f"============{broker.address}============"
    shown = dict(SETTING.findall("\n".join(lines)))
    assert shown["brokerName"] == BROKER_NAME
    assert shown["storePathRootDir"] == str(broker.store)
    for key, value in (("fileReservedTime", "49"), ("sendMessageThreadPoolNums", "3")):
        printed = run("updateBrokerConfig", "-b", broker.address, "-k", key, "-v", value)
        assert printed == f"update broker config success, {broker.address}"
        assert re.search(rf"{key} += {{2}}{value}", run("getBrokerConfig", "-b", broker.address))
    assert "fileReservedTime=49" in (broker.scratch / "server.conf").read_text()
    for key in ("brokerConfigPath", "rocketmqHome", "storePathRootDir", "filterServerNums"):
        printed = run("updateBrokerConfig", "-b", broker.address, "-k", key, "-v", "/x")
        assert "CODE: 16  DESC: Can not update config in black list." in printed


def test_a_name_servers_settings_are_shown_and_changed(run: Shell, broker: Broker) -> None:
    address = broker.name_server.address
    head, *lines = run("getNamesrvConfig").splitlines()
    assert head == f"============{address}============"
    shown = dict(SETTING.findall("\n".join(lines)))
    assert {"kvConfigPath", "configStorePath", "orderMessageEnable", "listenPort"} <= shown.keys()
    printed = run("updateNamesrvConfig", "-k", "clusterTest", "-v", "false")
    assert printed == (f"update name server config success![{address}]\nclusterTest : false")
    for key in ("kvConfigPath", "configStorePath", "rocketmqHome"):
        printed = run("updateNamesrvConfig", "-k", key, "-v", "/x")
        assert "CODE: 16  DESC: Can not update config in black list." in printed


def test_key_value_settings_and_the_order_of_topics_can_be_changed(
    run: Shell, broker: Broker
) -> None:
    assert run("updateKvConfig", "-s", "NS", "-k", "k", "-v", "v") == (
        "create or update kv config to namespace success."
    )
    assert run("deleteKvConfig", "-s", "NS", "-k", "k") == (
        "delete kv config from namespace success."
    )
    value = f"{BROKER_NAME}:8"
    done = f"orderConf success. topic=[AD-order], orderConf=[{value}]"
    assert run("updateOrderConf", "-t", "AD-order", "-v", value, "-m", "put") == f"update {done}"
    assert run("updateOrderConf", "-t", "AD-order", "-m", "get") == f"get {done}"
    assert run("updateOrderConf", "-t", "AD-order", "-m", "delete") == (
        "delete orderConf success. topic=[AD-order]"
    )


def test_the_permission_to_write_is_wiped_and_added(run: Shell, broker: Broker) -> None:
    make_topic(run, broker, "AD-wipe")
    address = broker.name_server.address
    printed = run("wipeWritePerm", "-b", BROKER_NAME)
    wiped = re.fullmatch(
        rf"wipe write perm of broker\[{BROKER_NAME}\] in name server\[{address}\] OK, (\d+)",
        printed,
    )
    assert wiped
    assert int(wiped[1]) > 5
    assert '"perm":4' in run("topicRoute", "-t", "AD-wipe")
    assert run("addWritePerm", "-b", BROKER_NAME) == printed.replace("wipe", "add")
    assert '"perm":6' in run("topicRoute", "-t", "AD-wipe")


def test_a_brokers_figures_are_those_of_the_original(run: Shell, broker: Broker) -> None:
    shown = dict(FIGURE.findall(run("brokerStatus", "-b", broker.address)))
    for key in (
        *("EndTransactionQueueSize", "bootTimestamp", "commitLogDirCapacity", "commitLogMinOffset"),
        *("dispatchMaxBuffer", "getFoundTps", "getMissTps", "getMessageEntireTimeMax"),
        *("pullThreadPoolQueueCapacity", "putLatency99", "putMessageDistributeTime", "runtime"),
        *("queryThreadPoolQueueSize", "remainTransientStoreBufferNumbs", "putMessageTimesTotal"),
    ):
        assert key in shown, key
    assert re.fullmatch(
        r"Total : [\d.]+ [KMGT]iB, Free : [\d.]+ [KMGT]iB\.", shown["commitLogDirCapacity"]
    )
    columns, *rows = run("clusterList", "-m").splitlines()
    assert columns.split() == [
        *("#Cluster", "Name", "#Broker", "Name", "#InTotalYest", "#OutTotalYest"),
        *("#InTotalToday", "#OutTotalToday"),
    ]
    assert rows[0].split()[:2] == [CLUSTER, BROKER_NAME]


def test_units_of_a_queue_are_shown(run: Shell, broker: Broker) -> None:
    make_topic(run, broker, "AD-cq", "-r", "4", "-w", "4")
    stored_messages(broker, "AD-cq")
    options = ("-b", broker.address, "-t", "AD-cq", "-q", "0", "-i", "0", "-c", "3")
    unit = (
        r"ConsumeQueueData\{physicOffset=\d+, physicSize=\d+, tagsCode=0, "
        r"extendDataJson='null', bitMap='null', eval=false, msg='null'\}"
    )
    line = "=" * 38
    wanted = rf"Queue data: \nmax: 1, min: 0\n{line}\nidx: 0\n{unit}\n{line}"
    wait_until(lambda: re.fullmatch(wanted, run("queryCq", *options)) is not None, "the unit")
    printed = run("queryCq", *options, "-g", "AD-nobody")
    assert "Filter data: \nAD-nobody@AD-cq is not online!" in printed
    assert "9@AD-cq is not exist!" in run("queryCq", *options[:4], "-q", "9", *options[6:])


def test_account_commands_without_access_control_are_refused_with_an_explanation(
    run: Shell, broker: Broker
) -> None:
    assert "CODE: 210" in run("deleteAccessConfig", "-b", broker.address, "-a", "nobody")
    assert "aclEnable is false" in run("clusterAclConfigVersion", "-b", broker.address)


def test_configurations_are_exported(run: Shell, broker: Broker, tmp_path: Path) -> None:
    printed = run("exportConfigs", "-c", CLUSTER, "-f", str(tmp_path))
    assert printed == f"export {tmp_path}/configs.json success"
    assert '"flushDiskType":"ASYNC_FLUSH"' in (tmp_path / "configs.json").read_text()
