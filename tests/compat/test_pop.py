"""Java 5.5.0 clients receive message by message (POP): nothing is missing, however members end.

The official 5.5 broker gets the same treatment; its repeats are printed beside ours.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import pytest

from protocol.bodies_tables import SubscriptionGroupConfig
from tests.compat.agent import Agent, closing, java_agent
from tests.compat.conftest import SOON_BALANCED, _needed, wait_for_route
from tests.compat.corpus import SERIAL, Outgoing
from tests.compat.mqadmin import Mqadmin, mqadmin
from tests.compat.patience import wait_until
from tests.compat.remoting import exchange, stored_offset
from tests.compat.servers import (
    SMALL_FILES,
    Broker,
    NameServer,
    OfficialBroker,
    OfficialNameServer,
    OurBroker,
    OurNameServer,
)
from tests.compat.toolchain import Java, java_5_servers

UPDATE_AND_CREATE_TOPIC, UPDATE_GROUP, GET_MAX_OFFSET = 17, 200, 30
TOPIC, GROUP, QUEUES = "Popped", "poppers", 8
DOOMED = "Doomed"
"""Topic, and group with one retry, whose listener always fails."""
COUNT, BATCH = 10_000, 250
INVISIBLE_MS = 8000
FAILING, DYING = 20, 5
"""Messages that fail once, and those that always do."""
DEADLINE_S = 240.0
KINDS = ["ours", pytest.param("official-5.5", marks=pytest.mark.whole)]


@dataclass
class Trial:
    """A broker, the members of one group in processes of their own, and what was sent."""

    kind: str
    broker: Broker
    java: Java
    scratch: Path
    stack: ExitStack
    run: Mqadmin
    agents: dict[str, Agent] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    """Deliveries that each message needs, by serial."""

    def join(self, name: str) -> Agent:
        agent = java_agent(name, self.java, self.scratch, self.broker, *SOON_BALANCED)
        self.agents[name] = self.stack.enter_context(closing(agent))
        agent.join(name, GROUP, TOPIC, popInvisibleTime=INVISIBLE_MS, pause=2)
        return agent

    def send_doomed(self) -> None:
        """Send messages to the member that always fails."""
        messages = [Outgoing(f"doomed-{number}", b"x") for number in range(DYING)]
        self.agents["producer"].send("batch", DOOMED, messages, group="pop-producers")

    def send(self, count: int) -> None:
        """Send so many messages in batches; some of the first fail, some always."""
        producer = self.agents["producer"]
        for first in range(len(self.sent), len(self.sent) + count, BATCH):
            messages = [self._message(number) for number in range(first, first + BATCH)]
            told = producer.send("batch", TOPIC, messages, group="pop-producers").results
            assert [each["status"] for each in told] == ["SEND_OK"]

    def _message(self, number: int) -> Outgoing:
        serial, failures = f"m{number}", int(number < FAILING)
        self.sent[serial] = failures + 1
        properties = {"failures": str(failures)} if failures else {}
        return Outgoing(serial, b"body %d" % number, properties=properties)

    def deliveries(self) -> Counter[str]:
        return Counter(
            event["properties"][SERIAL]
            for agent in self.agents.values()
            for event in agent.everything_received()
        )

    def missing(self) -> set[str]:
        """Return what was not delivered as often as it needs."""
        got = self.deliveries()
        return {serial for serial, needed in self.sent.items() if got[serial] < needed}

    def wait_for(self, count: int) -> None:
        wait_until(
            lambda: len(self.deliveries()) >= count, f"{count} messages", timeout_s=DEADLINE_S
        )

    def repeated(self) -> int:
        """Return the deliveries that no failure of a listener explains."""
        got = self.deliveries()
        return sum(max(0, got[serial] - needed) for serial, needed in self.sent.items())

    def max_offset(self, topic: str, queue_id: int) -> int:
        fields = {"topic": topic, "queueId": str(queue_id)}
        answer = exchange(self.broker.address, GET_MAX_OFFSET, fields)
        return int((answer.fields or {}).get("offset", 0))

    def is_settled(self) -> bool:
        """Return whether the group has consumed everything, by its consumer offsets."""
        return all(
            stored_offset(self.broker.address, GROUP, TOPIC, queue_id)
            == self.max_offset(TOPIC, queue_id)
            for queue_id in range(QUEUES)
        )


@pytest.fixture
def trial(request: pytest.FixtureRequest, java_5_tools: Java, tmp_path: Path) -> Iterator[Trial]:
    kind = request.param
    names: NameServer = OurNameServer(tmp_path / "names")
    if kind != "ours":
        names = OfficialNameServer(_needed(java_5_servers), tmp_path / "names")
    with ExitStack() as stack:
        stack.enter_context(names)
        broker: Broker = OurBroker(tmp_path / "broker", names, SMALL_FILES)
        if kind != "ours":
            tools = _needed(java_5_servers)
            broker = OfficialBroker(tools, tmp_path / "broker", names, SMALL_FILES)
        stack.enter_context(broker)
        run = mqadmin(java_5_tools, tmp_path, names.address)
        yield Trial(kind, broker, java_5_tools, tmp_path, stack, run)


def prepare(made: Trial, topic: str, queues: int, group: str, retries: int) -> None:
    """Create topic and group, and set the mode by the official tool."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    assert exchange(made.broker.address, UPDATE_AND_CREATE_TOPIC, fields).code == 0
    settings = SubscriptionGroupConfig(group, retry_max_times=retries).encode()
    assert exchange(made.broker.address, UPDATE_GROUP, body=settings).code == 0
    wait_for_route(made.broker, topic)
    told = made.run(
        "setConsumeMode", "-c", "DefaultCluster", "-t", topic, "-g", group, "-m", "POP", "-q", "0"
    )
    assert f"set consume mode to {made.broker.address} success" in told.stdout, told


@pytest.mark.parametrize("trial", KINDS, indirect=True)
def test_members_that_come_go_die_and_sleep_miss_nothing(trial: Trial) -> None:
    prepare(trial, TOPIC, QUEUES, GROUP, 16)
    prepare(trial, DOOMED, 1, DOOMED, 1)
    producer = java_agent("producer", trial.java, trial.scratch, trial.broker)
    trial.agents["producer"] = trial.stack.enter_context(closing(producer))
    stays = trial.join("stays")
    stays.join("fails", DOOMED, DOOMED, popInvisibleTime=INVISIBLE_MS, fails=True)
    trial.send_doomed()
    dies = trial.join("dies")
    trial.send(COUNT // 5)
    trial.wait_for(COUNT // 10)
    sleeper = trial.join("sleeps")
    trial.send(COUNT // 5)
    trial.wait_for(COUNT // 4)
    trial.send(COUNT // 5)
    dies.kill()
    goes = trial.join("goes")
    trial.send(COUNT // 5)
    trial.wait_for(COUNT // 2)
    trial.send(COUNT // 5)
    began = monotonic()
    os.kill(sleeper.pid, signal.SIGSTOP)
    goes.leave("goes")
    assert len(trial.sent) == COUNT
    try:
        wait_until(lambda: not trial.missing(), "all messages", DEADLINE_S)
    finally:
        took = monotonic() - began
        print(f"missing at {trial.kind}: {sorted(trial.missing())[:20]}")
        os.kill(sleeper.pid, signal.SIGCONT)
    dead = 0
    if trial.kind == "ours":
        wait_until(
            lambda: trial.max_offset(f"%DLQ%{DOOMED}", 0) >= DYING, "dead letters", DEADLINE_S
        )
        dead = trial.max_offset(f"%DLQ%{DOOMED}", 0)
        wait_until(trial.is_settled, "offsets at the end", DEADLINE_S)
        assert dead == DYING
    print(
        f"POP at {trial.kind}: {COUNT} messages, {len(trial.missing())} missing,"
        f" {trial.repeated()} repeated, {dead} dead letters; {took:.0f} s after the last send"
    )


@pytest.mark.whole
@pytest.mark.parametrize("trial", ["ours"], indirect=True)
def test_members_that_pull_and_members_that_pop_share_a_topic(
    trial: Trial, java_tools: Java
) -> None:
    """A 4.9.7 client divides the queues among all members, and leaves some to those that pop."""
    prepare(trial, TOPIC, QUEUES, GROUP, 16)
    pulls = java_agent("pulls", java_tools, trial.scratch, trial.broker, *SOON_BALANCED)
    trial.agents["producer"] = trial.stack.enter_context(closing(pulls))
    pulls.join("pulls", GROUP, TOPIC)
    wait_until(lambda: len(pulls.assigned("pulls")) == QUEUES, "all queues at the puller")
    trial.send(COUNT // 10)
    pops = trial.join("pops")
    wait_until(lambda: len(pulls.assigned("pulls")) == QUEUES // 2, "half of the queues")
    for _ in range(4):
        trial.send(COUNT // 10)
    wait_until(lambda: not trial.missing(), "all messages", DEADLINE_S)
    assert pops.received("pops") and pulls.received("pulls")
    pops.kill()
    del trial.agents["pops"]
    wait_until(lambda: len(pulls.assigned("pulls")) == QUEUES, "all queues again")
    trial.agents["pops"] = pops
    trial.send(COUNT // 10)
    wait_until(lambda: not trial.missing(), "what came after", DEADLINE_S)
    wait_until(trial.is_settled, "offsets at the end", DEADLINE_S)
    print(f"mixed group: {len(trial.sent)} messages, 0 missing, {trial.repeated()} repeated")
