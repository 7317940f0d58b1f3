"""Order, retries, dead letters, delays and waiting, by each official client.

What came is compared with what was sent, in content, order of each queue, properties and counts.
Filters and the ways to send are in test_send_and_receive.py and test_property_filters.py.
"""

import statistics
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from threading import Event as Flag

import pytest

from tests.compat.agent import Agent, Event, Sent
from tests.compat.comparison import assert_same, serial_of
from tests.compat.conftest import SHORT_DELAYS_MS, wait_for_route
from tests.compat.corpus import Outgoing, varied
from tests.compat.groups import receive
from tests.compat.patience import wait_until
from tests.compat.side_by_side import KINDS, Agents, each_kind, known_group, new_topic

LATE_MS = 1000
"""Delay that a busy machine may add; simulated tests measure the broker itself."""

HANDOVER_S = 70.0
"""A client looks every 20 s whether it can have the lock of a queue that is now its own."""


# --- order


@pytest.mark.slow(seconds=30)
def test_each_queue_keeps_its_order_while_members_come_and_go(agents: Agents) -> None:
    each_kind(agents, _orderly)


def _orderly(agents: Agents, kind: str) -> None:
    queues = 4
    topic = new_topic(agents, f"CS-orderly-{kind}", queues)
    agent, sender = agents[kind], agents[KINDS[KINDS.index(kind) - 1]]
    sent: list[Sent] = []
    done, names = Flag(), (f"one-{kind}", f"two-{kind}")

    def send() -> None:
        while not done.wait(0.5):
            chunk = varied(f"{kind}-{len(sent)}", 10)
            sent.append(sender.send("sync", topic, chunk))

    def of_queues(member: str, after: int) -> set[int]:
        return {event["queueId"] for event in agent.received(member)[after:]}

    with ThreadPoolExecutor() as pool:
        sending = pool.submit(send)
        try:
            agent.join(names[0], f"group-{topic}", topic, orderly=True, pause=5)
            wait_until(lambda: len(of_queues(names[0], 0)) == queues, "all queues at the first")
            agent.join(names[1], f"group-{topic}", topic, orderly=True, pause=5)
            wait_until(lambda: len(of_queues(names[1], 0)) == 2, "two at the second", HANDOVER_S)
            agent.leave(names[1])
            so_far = len(agent.received(names[0]))
            wait_until(lambda: len(of_queues(names[0], so_far)) == queues, "all again", HANDOVER_S)
        finally:
            done.set()
        sending.result()
    wanted = sum(len(one.messages) for one in sent)

    def seen() -> list[Event]:
        return [event for event in agent.everything_received() if event["member"] in names]

    wait_until(lambda: len({serial_of(event) for event in seen()}) >= wanted, "the rest")
    agent.leave(names[0])
    assert_same(sent, _first_times(seen()), agent.broker)
    assert order_problems(seen()) == []


def _first_times(events: list[Event]) -> list[Event]:
    return list({serial_of(event): event for event in reversed(events)}.values())[::-1]


def as_stored(events: Iterable[Event]) -> list[Event]:
    """Return the messages of one queue in its order; several listener threads see them in any
    order.
    """
    return sorted(events, key=lambda event: int(event["queueOffset"]))


def order_problems(events: list[Event]) -> list[str]:
    """Return the order errors of all members over time; only a member that takes over a queue may
    repeat.
    """
    last: dict[int, tuple[int, str]] = {}
    found = []
    for event in events:
        queue, offset, member = event["queueId"], event["queueOffset"], event["member"]
        before, holder = last.get(queue, (-1, member))
        if offset > before + 1 or (offset <= before and member == holder):
            found.append(f"queue {queue}: {offset} at {member} after {before} at {holder}")
        last[queue] = offset, member
    return found


# --- failures


def dead_letters(agent: Agent, group: str, count: int) -> list[Event]:
    wait_for_route(agent.broker, f"%DLQ%{group}")
    member = f"undertaker-of-{group}"
    agent.join(member, f"undertakers-of-{group}", f"%DLQ%{group}")
    dead = receive(agent, member, count)
    agent.leave(member)
    return dead


def test_failed_messages_are_retried_and_become_dead_letters(agents: Agents) -> None:
    each_kind(agents, _failing)


def _failing(agents: Agents, kind: str) -> None:
    topic, agent = new_topic(agents, f"CS-failing-{kind}", 1), agents[kind]
    group, member = known_group(agent, f"group-{topic}", topic), f"failing-{kind}"
    messages = [replace(each, delay_level=0) for each in varied(f"{kind}-failing", 3)]
    sent = agent.send("sync", topic, messages)
    agent.join(member, group, topic, fails=True, maxReconsumeTimes=2)
    got = receive(agent, member, 9)
    dead = dead_letters(agent, group, 3)
    agent.leave(member)
    first = as_stored(event for event in got if event["reconsumeTimes"] == 0)
    assert_same([sent], first, agent.broker)
    for message, event in zip(messages, first, strict=True):
        assert serial_of(event) == message.serial
        tries = [each for each in got if serial_of(each) == message.serial]
        assert [each["reconsumeTimes"] for each in tries] == [0, 1, 2]
        for before, after in pairwise(tries):
            waited_ms = after["storeTimestamp"] - before["storeTimestamp"]
            assert waited_ms >= 1000  # level 3, then 4
        (buried,) = (each for each in dead if serial_of(each) == message.serial)
        assert buried["reconsumeTimes"] == 3
        for each in (*tries, buried):
            kept = ("body", "tags", "keys", "flag", "bornTimestamp", "bornHost", "msgId")
            assert {name: each[name] for name in kept} == {name: event[name] for name in kept}
        assert buried["properties"]["RETRY_TOPIC"] == topic
        assert buried["properties"]["ORIGIN_MESSAGE_ID"] == event["offsetMsgId"]
        assert buried["properties"].items() >= message.user_properties().items()
    assert len(got) == 9 and len(dead) == 3


def test_only_the_failed_messages_of_a_batch_are_retried(agents: Agents) -> None:
    each_kind(agents, _partly_failing, ("java", "java-5"))


def _partly_failing(agents: Agents, kind: str) -> None:
    topic, agent = new_topic(agents, f"CS-partly-{kind}", 1), agents[kind]
    group, member = known_group(agent, f"group-{topic}", topic), f"partly-{kind}"
    sent = agent.send("batch", topic, varied(f"{kind}-partly", 8))
    agent.join(member, group, topic, batch=8, succeeds=5)
    got = receive(agent, member, 11)
    agent.leave(member)
    assert_same([sent], got[:8], agent.broker)
    assert sorted(map(serial_of, got[8:])) == sorted(map(serial_of, got[5:8]))
    assert [event["reconsumeTimes"] for event in got] == [0] * 8 + [1] * 3


def test_a_consumer_can_make_a_message_a_dead_letter_at_once(agents: Agents) -> None:
    each_kind(agents, _given_up, ("java", "java-5"))


def _given_up(agents: Agents, kind: str) -> None:
    topic, agent = new_topic(agents, f"CS-given-up-{kind}", 1), agents[kind]
    group, member = known_group(agent, f"group-{topic}", topic), f"gives-up-{kind}"
    agent.send("sync", topic, varied(f"{kind}-given-up", 2))
    agent.join(member, group, topic, fails=True, nextLevel=-1)
    dead = dead_letters(agent, group, 2)
    agent.leave(member)
    assert [event["reconsumeTimes"] for event in dead] == [1, 1]
    received = agent.received(member)  # by several threads, which give up in any order
    assert sorted(map(serial_of, dead)) == sorted(map(serial_of, received))


# --- time


def test_delayed_messages_arrive_when_due_and_in_order_within_a_level(agents: Agents) -> None:
    each_kind(agents, _delayed)


def _delayed(agents: Agents, kind: str) -> None:
    topic, agent, member = new_topic(agents, f"CS-delayed-{kind}", 1), agents[kind], f"late-{kind}"
    agent.join(member, f"group-{topic}", topic)
    messages = [Outgoing(str(n), b"%d" % n, tags="t", delay_level=n % 4) for n in range(20)]
    sent = agent.send("sync", topic, messages)
    assert {result["status"] for result in sent.results} == {"SEND_OK"}
    got = receive(agent, member, len(messages))
    agent.leave(member)
    assert sorted(int(serial_of(event)) for event in got) == list(range(20))
    for event in got:
        message = messages[int(serial_of(event))]
        level = message.delay_level
        delay_ms = SHORT_DELAYS_MS[level - 1] if level else 0
        waited_ms = event["storeTimestamp"] - event["bornTimestamp"]
        assert delay_ms <= waited_ms <= delay_ms + LATE_MS
        assert event["properties"].get("DELAY") == (str(level) if level else None)
        assert (event["topic"], event["tags"]) == (topic, "t")
    for level in range(4):
        serials = [int(serial_of(event)) for event in as_stored(got)]
        of_level = [serial for serial in serials if serial % 4 == level]
        assert of_level == sorted(of_level)


def test_an_idle_consumer_gets_a_message_at_once(agents: Agents) -> None:
    each_kind(agents, _latency)


def _latency(agents: Agents, kind: str) -> None:
    topic, agent, member = new_topic(agents, f"CS-idle-{kind}", 1), agents[kind], f"idle-{kind}"
    agent.join(member, f"group-{topic}", topic)
    agent.send("sync", topic, [Outgoing("0", b"0")])
    receive(agent, member, 1)
    for number in range(1, 16):  # each finds a held pull
        agent.send("sync", topic, [Outgoing(str(number), b"%d" % number)])
        receive(agent, member, number + 1)
    agent.leave(member)
    took_ms = [event["at"] - event["storeTimestamp"] for event in agent.received(member)[1:]]
    assert statistics.median(took_ms) < 100, took_ms
