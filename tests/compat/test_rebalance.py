"""Two members of a group share a topic's queues; a remaining member takes over after the other."""

from collections.abc import Callable

import pytest

from tests.compat.agent import Agent, Event, Sent
from tests.compat.comparison import assert_same, serial_of
from tests.compat.conftest import MakeTopic
from tests.compat.corpus import varied
from tests.compat.patience import wait_until
from tests.compat.servers import Broker

QUEUES = set(range(8))
COUNT = 48
# Below the clients' own 20 s round: in this time only the broker's notice makes them look again.
NOTICE_DEADLINE_S = 12.0

Member = tuple[Agent, str]


def wait_for_shares(members: list[Member], shares: list[int]) -> None:
    """Until the members hold all queues, each queue once, in shares of these sizes."""

    def shared() -> bool:
        held = [agent.assigned(name) for agent, name in members]
        return [len(one) for one in held] == shares and set().union(*held) == QUEUES

    wait_until(shared, f"shares of {shares} queues", NOTICE_DEADLINE_S)


def events_of(sent: Sent, members: list[Member]) -> list[Event]:
    serials = {message.serial for message in sent.messages}
    events = (event for agent, name in members for event in agent.received(name))
    return [event for event in events if serial_of(event) in serials]


def check_delivery(sent: Sent, members: list[Member], broker: Broker) -> None:
    """All of `sent` arrives, once, each at the member that holds its queue."""
    wait_until(lambda: len(events_of(sent, members)) >= COUNT, f"{COUNT} messages at {members}")
    events = events_of(sent, members)
    assert_same([sent], events, broker)
    holders = {queue: name for agent, name in members for queue in agent.assigned(name)}
    assert [event["member"] for event in events] == [holders[event["queueId"]] for event in events]


@pytest.mark.parametrize(
    "first_kind, second_kind, goodbye",
    [
        ("java", "java", "leaves"),
        pytest.param("java-binary", "java", "is killed", marks=pytest.mark.whole),
        pytest.param("go", "go", "leaves", marks=pytest.mark.whole),
        ("java", "go", "is killed"),
    ],
)
def test_a_group_shares_its_queues_as_members_come_and_go(
    first_kind: str,
    second_kind: str,
    goodbye: str,
    start_client: Callable[[str], Agent],
    client_of: Callable[[str], Agent],
    new_topic: MakeTopic,
    broker: Broker,
) -> None:
    stays, goes = client_of(first_kind), start_client(second_kind)
    topic = new_topic(f"rebalance-{first_kind}-{second_kind}", len(QUEUES))
    group = f"group-of-{topic}"
    one, two = (stays, f"one-{topic}"), (goes, f"two-{topic}")

    stays.join(one[1], group, topic)
    wait_for_shares([one], [8])
    alone = stays.send("sync", topic, varied(f"{topic}-alone", COUNT))
    check_delivery(alone, [one], broker)

    goes.join(two[1], group, topic)
    wait_for_shares([one, two], [4, 4])
    together = stays.send("sync", topic, varied(f"{topic}-together", COUNT))
    check_delivery(together, [one, two], broker)

    if goodbye == "leaves":
        goes.leave(two[1])
    else:
        goes.kill()
    wait_for_shares([one], [8])
    alone_again = stays.send("sync", topic, varied(f"{topic}-alone-again", COUNT))
    check_delivery(alone_again, [one], broker)
    stays.leave(one[1])

    # A queue that changes hands may repeat what its last holder had not yet confirmed: no more.
    everything = [alone, together, alone_again]
    known = {message.serial for sent in everything for message in sent.messages}
    got = [serial_of(event) for agent, name in (one, two) for event in agent.received(name)]
    assert set(got) == known
