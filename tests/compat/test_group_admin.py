"""The official mqadmin about groups: who is in them, how far they are, resets that arrive.

Columns and sentences are those that it printed beside the original.
"""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.admin_shell import mqadmin_in_one_java
from tests.compat.agent import SMALL_JVM, Agent, Event, closing, java_agent
from tests.compat.conftest import SERVER_KIND, wait_for_route
from tests.compat.corpus import Outgoing
from tests.compat.groups import wait_for_commits
from tests.compat.mqadmin import Mqadmin
from tests.compat.patience import wait_until
from tests.compat.servers import BROKER_NAME, Broker
from tests.compat.test_mqadmin import printed
from tests.compat.toolchain import Java, java_5

QUEUES = 4
COUNT = 12
TOPIC, GROUP, MEMBER = "IT-groups", "IT-group", "member-of-it-group"
PRODUCER = "producer-groups"
RESET_DEADLINE_S = 60.0
"""The Java client waits 10 s before it goes where it was sent; a crowded machine needs more."""


@pytest.fixture(scope="module")
def run(java_tools: Java, scratch: Path, broker: Broker) -> Iterator[Mqadmin]:
    with mqadmin_in_one_java(java_tools, scratch, broker.name_server.address) as run:
        yield run


@pytest.fixture(scope="module")
def client(java_tools: Java, scratch: Path, broker: Broker) -> Iterator[Agent]:
    """One producer and one consumer, which has got everything and committed it."""
    with closing(java_agent("groups", java_tools, scratch, broker)) as agent:
        agent.create_topic(TOPIC, QUEUES)
        wait_for_route(broker, TOPIC)
        messages = [Outgoing(str(n), b"%d" % n, tags="TagA") for n in range(COUNT)]
        sent = agent.send("sync", TOPIC, messages)
        assert {each["status"] for each in sent.results} == {"SEND_OK"}
        agent.join(MEMBER, GROUP, TOPIC, "TagA || TagB")
        wait_until(lambda: len(agent.received(MEMBER)) >= COUNT, "all messages at the member")
        ends = Counter(each["queueId"] for each in sent.results)
        wait_for_commits(broker, GROUP, TOPIC, ends)
        yield agent


def rows(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """Return the output lines, split at blanks."""
    return [line.split() for line in printed(done).splitlines() if line.strip()]


def progress(run: Mqadmin) -> tuple[dict[int, tuple[int, int]], list[list[str]]]:
    """Return broker and consumer offset by queue of the topic, and all lines."""
    lines = rows(run("consumerProgress", "-g", GROUP))
    assert " ".join(lines[0]) == (
        "#Topic #Broker Name #QID #Broker Offset #Consumer Offset #Diff #LastTime"
    )
    return {int(row[2]): (int(row[3]), int(row[4])) for row in lines if row[0] == TOPIC}, lines


def client_id(run: Mqadmin) -> str:
    return rows(run("consumerConnection", "-g", GROUP))[1][0]


def test_consumers_and_their_subscriptions_are_listed(run: Mqadmin, client: Agent) -> None:
    lines = rows(run("consumerConnection", "-g", GROUP))
    assert lines[0] == ["#ClientId", "#ClientAddr", "#Language", "#Version"]
    member, address, language, version = lines[1]
    assert member.endswith(f"@{MEMBER}") and re.fullmatch(r"127\.0\.0\.1:\d+", address)
    assert (language, version) == ("JAVA", "V4_9_7")
    assert lines[2:4] == [["Below", "is", "subscription:"], ["#Topic", "#SubExpression"]]
    assert sorted(lines[4:6]) == [["%RETRY%" + GROUP, "*"], [TOPIC, "TagA", "||", "TagB"]]
    assert [" ".join(each) for each in lines[6:]] == [
        "ConsumeType: CONSUME_PASSIVELY",
        "MessageModel: CLUSTERING",
        "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET",
    ]
    done = run("consumerConnection", "-g", "IT-nobody")
    assert "CODE: 17  DESC: No topic route info in name server" in done.stderr


def test_producers_are_listed(run: Mqadmin, client: Agent, broker: Broker) -> None:
    (row,) = rows(run("producerConnection", "-g", PRODUCER, "-t", TOPIC))
    assert row[0] == "0001" and row[3:] == ["JAVA", "V4_9_7"]
    text = printed(run("producer", "-b", broker.address))
    pattern = (
        rf"producer group \({PRODUCER}\) instance : clientId=\S+,remoteIP=/127\.0\.0\.1:\d+,"
        r" language=JAVA, version=407, lastUpdateTimestamp=\d+"
    )
    assert re.search(pattern, text), text


def test_the_state_of_a_consumer_is_shown(run: Mqadmin, client: Agent) -> None:
    text = printed(run("consumerStatus", "-g", GROUP))
    head, row = [line.split() for line in text.splitlines()[:2]]
    assert head == ["#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"]
    assert row[:3] == ["1", client_id(run), "V4_9_7"]
    assert "Same subscription in the same group of consumer" in text
    assert "Rebalance OK" in text
    text = printed(run("consumerStatus", "-g", GROUP, "-i", client_id(run), "-s"))
    for section in ("#Consumer Properties#", "#Consumer Subscription#", "#Consumer Offset#"):
        assert section in text
    assert "#Consumer jstack#" in text


def test_the_progress_of_a_group_is_shown(run: Mqadmin, client: Agent, broker: Broker) -> None:
    queues, lines = progress(run)
    assert sorted(queues) == [*range(QUEUES)]
    assert all(high == offset for high, offset in queues.values())
    assert lines[-2][:2] == ["Consume", "TPS:"] and lines[-1] == ["Diff", "Total:", "0"]
    lines = rows(run("consumerProgress"))
    assert " ".join(lines[0]) == "#Group #Count #Version #Type #Model #TPS #Diff Total"
    (row,) = [each for each in lines if each[0] == GROUP]
    assert row[1:5] == ["1", "V4_9_7", "PUSH", "CLUSTERING"] and row[-1] == "0"
    lines = rows(run("topicStatus", "-t", TOPIC))
    assert " ".join(lines[0]) == "#Broker Name #QID #Min Offset #Max Offset #Last Updated"
    assert sum(int(row[3]) for row in lines[1:]) == COUNT
    lines = rows(run("brokerConsumeStats", "-b", broker.address))
    assert " ".join(lines[0]).startswith("#Topic #Group #Broker Name #QID #Broker Offset")
    assert len([row for row in lines if row[:3] == [TOPIC, GROUP, BROKER_NAME]]) == QUEUES


def test_one_message_is_consumed_directly(run: Mqadmin, client: Agent) -> None:
    event = client.received(MEMBER)[0]
    done = run("queryMsgById", "-i", event["offsetMsgId"], "-g", GROUP, "-d", client_id(run))
    assert re.search(
        r"ConsumeMessageDirectlyResult \[order=false, autoCommit=true,"
        r" consumeResult=CR_SUCCESS, remark=null, spentTimeMills=\d+\]",
        printed(done),
    )

    def times() -> int:
        return [each["offsetMsgId"] for each in client.received(MEMBER)].count(event["offsetMsgId"])

    wait_until(lambda: times() == 2, "the message once more")


def offsets_of(lines: list[list[str]], columns: str) -> dict[int, int]:
    """Return the rows of a reset: brokerName, queueId, offset."""
    start = next(number for number, row in enumerate(lines) if " ".join(row) == columns)
    return {int(row[1]): int(row[2]) for row in lines[start + 1 :]}


def again(client: Agent, before: int) -> list[Event]:
    return client.received(MEMBER)[before:]


def test_a_reset_reaches_a_member_that_is_online(run: Mqadmin, client: Agent) -> None:
    before = len(client.received(MEMBER))
    lines = rows(run("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0", "-f", "true"))
    assert lines[0][:5] == ["rollback", "consumer", "offset", "by", "specified"]
    goals = offsets_of(lines, "#brokerName #queueId #offset")
    assert goals == dict.fromkeys(range(QUEUES), 0)
    if SERVER_KIND != "official":  # there the member changes them, ten seconds later
        queues, _ = progress(run)
        assert {offset for _, offset in queues.values()} == {0}
    wait_until(lambda: len(again(client, before)) >= COUNT, "all once more", RESET_DEADLINE_S)
    assert sorted(int(each["properties"]["serial"]) for each in again(client, before)) == [
        *range(COUNT)
    ]


def test_the_offsets_of_a_group_are_cloned(run: Mqadmin, client: Agent) -> None:
    done = run("cloneGroupOffset", "-s", GROUP, "-d", "IT-clone", "-t", TOPIC, "-o", "true")
    assert printed(done) == (
        f"clone group offset success. srcGroup[{GROUP}], destGroup=[IT-clone], topic[{TOPIC}]"
    )


def test_a_backlog_is_skipped_online_and_offsets_are_reset_offline(
    run: Mqadmin, client: Agent
) -> None:
    columns = "#brokerName #queueId #offset"
    ends = {queue: high for queue, (high, _) in progress(run)[0].items()}
    lines = rows(run("skipAccumulatedMessage", "-g", GROUP, "-t", TOPIC, "-f", "true"))
    assert offsets_of(lines, columns) == ends
    assert {queue: offset for queue, (_, offset) in progress(run)[0].items()} == ends
    client.leave(MEMBER)
    lines = rows(run("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0", "-f", "true"))
    offline = "#brokerName #queueId #brokerOffset #consumerOffset #timestampOffset #rollbackOffset"
    start = next(number for number, row in enumerate(lines) if " ".join(row).startswith(offline))
    assert {int(row[1]): int(row[-1]) for row in lines[start + 1 :]} == dict.fromkeys(ends, 0)
    queues, _ = progress(run)
    assert {offset for _, offset in queues.values()} == {0}
    before = len(client.received(MEMBER))
    client.join(MEMBER, GROUP, TOPIC, "TagA || TagB")
    wait_until(lambda: len(again(client, before)) >= COUNT, "all once more", RESET_DEADLINE_S)


@pytest.mark.skipif(SERVER_KIND == "official", reason="4.9.7 refuses the lite pulls of 5.x clients")
def test_a_lite_pull_consumer_of_5_3_3_gets_everything(
    client: Agent, broker: Broker, scratch: Path
) -> None:
    tools = java_5()
    command = [
        tools.executable,
        *SMALL_JVM,
        f"-Duser.home={scratch}",
        "-cp",
        tools.class_path,
        "interop.LitePull",
        broker.name_server.address,
        "IT-lite-group",
        TOPIC,
        "TagA",
        str(COUNT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pulled = [line.split() for line in done.stdout.splitlines() if re.match(r"\d+ \d+ \d+$", line)]
    assert sorted(int(body) for _, _, body in pulled) == [*range(COUNT)]
    for queue in {queue for queue, _, _ in pulled}:
        offsets = [int(offset) for own, offset, _ in pulled if own == queue]
        assert offsets == sorted(offsets)
