"""Progress of groups: what is stuck, since when and in which function, and what is unknown."""

from collections.abc import Mapping

import pytest

from protocol.bodies import MessageQueue
from protocol.bodies_admin import ClientConnection
from protocol.bodies_own import OffsetProgress, ProgressStats
from troupemq.client.admin.members import ClientInfo
from troupemq.client.admin.progress import (
    AskedMember,
    MemberProgress,
    QueueProgress,
    group_of,
    members_of_group,
    queues_of,
)
from troupemq.client.admin.stacks import busy_sentence, stacks_of

NOW_MS = 1_800_000_000_000
QUEUE = MessageQueue("Orders", "a", 0)
PYTHON = """\
MainThread                               TID: 1 STATE: RUNNABLE
MainThread                               wait(/usr/lib/python3.11/threading.py:327)

troupemq-consume-billing-0               TID: 2 STATE: RUNNABLE
troupemq-consume-billing-0               recv(/usr/lib/python3.11/ssl.py:1)
troupemq-consume-billing-0               slow(/srv/shop/incident.py:8)
troupemq-consume-billing-0               listen(/srv/shop/incident.py:13)
troupemq-consume-billing-0               call_listener(/v/site-packages/troupemq/client/x.py:157)
troupemq-consume-billing-0               run(/usr/lib/python3.11/threading.py:982)

troupemq-consume-other-0                 TID: 3 STATE: RUNNABLE
troupemq-consume-other-0                 call_listener(/v/site-packages/troupemq/client/x.py:157)

troupemq-consume-billing-1               TID: 4 STATE: RUNNABLE
troupemq-consume-billing-1               _run(/v/site-packages/troupemq/client/workers.py:44)
"""
LONG = "ConsumeMessageThread_" + "g" * 100 + "_1"
JAVA = f"""\
ConsumeMessageThread_billing_1          TID: 31 STATE: TIMED_WAITING
ConsumeMessageThread_billing_1          java.base@17/java.lang.Thread.sleep(Native Method)
ConsumeMessageThread_billing_1          com.acme.Incident.slow(Incident.java:8)
ConsumeMessageThread_billing_1          com.acme.Incident$1.consumeMessage(Incident.java:20)
ConsumeMessageThread_billing_1          org.apache.rocketmq.client.impl.consumer.\
ConsumeMessageConcurrentlyService$ConsumeRequest.run(ConsumeMessageConcurrentlyService.java:402)

{LONG}TID: 32 STATE: WAITING
{LONG}java.lang.Object.wait(Native Method)
{LONG}java.util.concurrent.ThreadPoolExecutor.getTask(ThreadPoolExecutor.java:1)
"""


@pytest.mark.parametrize(
    ("text", "group", "sentence"),
    [
        (PYTHON, "billing", "1 of 2 threads busy in slow(), incident.py:8"),
        (PYTHON, "nobody", "its threads are unknown"),
        (JAVA, "billing", "1 of 1 threads busy in slow(), Incident.java:8"),
        (JAVA, "g" * 101, "0 of 1 threads busy"),
        ("rubbish (", "billing", "its threads are unknown"),
        (7, "billing", "its threads are unknown"),
    ],
)
def test_a_busy_worker_names_the_function_of_its_listener(
    text: object, group: str, sentence: str
) -> None:
    assert busy_sentence(stacks_of(text, group)) == sentence


def test_calls_of_libraries_are_folded_and_busy_workers_come_first() -> None:
    found = stacks_of(PYTHON, "billing")
    assert [each.name for each in found][:2] == [f"troupemq-consume-billing-{n}" for n in (0, 1)]
    assert found[0].folded() == [
        "… 1 library call",
        "slow(), incident.py:8",
        "listen(), incident.py:13",
        "… 2 library calls",
    ]


def test_a_listener_that_consists_of_libraries_is_named_itself() -> None:
    text = PYTHON.replace("/srv/shop/", "/v/site-packages/shop/")
    assert busy_sentence(stacks_of(text, "billing")).endswith("busy in listen(), incident.py:13")


def stats(*, observed: bool = True, idle_s: float = 90.0, lag: int = 5) -> ProgressStats:
    """Return 5 waiting messages, the first came a minute ago; the offset moved `idle_s` ago."""
    ago_ms = NOW_MS - int(idle_s * 1000)
    where = OffsetProgress(10, 10 - lag, ago_ms - 1000)
    found = ProgressStats({QUEUE: where}, 2.0)
    if observed:
        where.pull_offset, where.moved_timestamp = 8, ago_ms
        where.waiting_timestamp = NOW_MS - 60_000 if lag else 0
        found.observed_since = NOW_MS - 900_000
    found.answered_timestamp = NOW_MS
    return found


def one(found: ProgressStats, members: list[AskedMember] | None = None) -> QueueProgress:
    (queue,) = queues_of([found], 30.0, members)
    return queue


def test_a_queue_is_stuck_since_its_message_came_and_nothing_was_consumed() -> None:
    queue = one(stats())
    assert (queue.is_stuck, queue.stuck_since_ms) == (True, NOW_MS - 60_000)
    assert (queue.in_flight, queue.late_ms, queue.consumed_at_ms) == (3, 60_000, NOW_MS - 90_000)
    queue = one(stats(idle_s=29.0))
    assert (queue.is_stuck, queue.stuck_since_ms) == (False, None)
    assert one(stats(lag=0, idle_s=900)).is_stuck is False, "nothing waits"


def test_values_that_an_official_broker_omits_are_unknown() -> None:
    queue = one(stats(observed=False))
    unknown = queue.is_stuck, queue.stuck_since_ms, queue.in_flight, queue.consumed_at_ms
    assert unknown == (None, None, None, None)
    group = group_of("billing", [queue], tps=2.0)
    assert (group.is_stuck, group.stuck_queues, group.lag) == (None, None, 5)
    assert group.verdict == "unknown: nothing reports when messages are consumed"


def member(idle_s: float, text: str = PYTHON, **queue: object) -> AskedMember:
    said = {"cachedMsgCount": 2, "cachedMsgMinOffset": 5} | queue
    said["lastConsumeTimestamp"] = NOW_MS - int(idle_s * 1000)
    info: Mapping[str, object] = {
        "mqTable": {"Orders@a:0": said},
        "statusTable": {"Orders": {"consumeOKTPS": 1.5, "consumeFailedTPS": 0.5}},
        "jstack": text,
    }
    return AskedMember(ClientConnection("c", "1.2.3.4:5", "PYTHON", 407), ClientInfo(info))


def of_member(asked: AskedMember, queues: list[QueueProgress]) -> MemberProgress:
    (found,) = members_of_group("billing", [asked], queues, now_ms=NOW_MS)
    return found


def test_a_stuck_member_is_named_with_its_message_and_its_function() -> None:
    call = {"msgId": "M", "queueOffset": 5, "since": NOW_MS - 180_000, "tries": 2}
    asked = member(181, inHand=[call, 7, {}], lastConsumedOffset=4, lastConsumedMsgId="L")
    queues = queues_of([stats()], 30.0, [asked])
    found = of_member(asked, queues)
    assert found.is_stuck
    assert found.current is not None
    assert (found.current.message_id, found.current.tries) == ("M", 2)
    assert (found.tps, found.failed_tps, found.lag, found.cached) == (1.5, 0.5, 5, 2)
    assert (found.last_message_id, queues[0].last_message_id) == ("L", "L")
    assert found.verdict == (
        "nothing finished for 3 min; 1 of 2 threads busy in slow(), incident.py:8"
    )
    (queue,) = queues
    assert (queue.client, queue.in_flight) == ("c", 2)
    assert queue.current is not None
    assert queue.row()["current_since_ms"] == NOW_MS - 180_000


def test_a_member_that_finished_a_message_shows_that_its_queue_moves() -> None:
    asked = member(3)
    queue = one(stats(), [asked])
    assert (queue.is_stuck, queue.consumed_at_ms) == (False, NOW_MS - 3000)
    found = of_member(asked, [queue])
    assert (found.is_stuck, found.current and found.current.queue_offset) == (False, 5)
    assert found.verdict == "consumes 1.5 msg/s; 1 of 2 threads busy in slow(), incident.py:8"


def test_a_java_member_at_an_official_broker_is_stuck_by_its_own_report() -> None:
    asked = member(60, JAVA)
    (queue,) = queues_of([stats(observed=False)], 30.0, [asked], {QUEUE: NOW_MS - 50_000})
    assert (queue.is_stuck, queue.stuck_since_ms) == (True, NOW_MS - 50_000)
    assert of_member(asked, [queue]).verdict.endswith("busy in slow(), Incident.java:8")


def test_a_silent_member_is_reported_with_the_reason() -> None:
    asked = AskedMember(ClientConnection("c", "1.2.3.4:5", "GO", 407), None, "timeout")
    found = of_member(asked, [one(stats())])
    assert (found.is_stuck, found.verdict) == (None, "reports nothing: timeout")


def test_a_group_tells_its_oldest_open_receive_or_listener_call() -> None:
    found = stats()
    found.held_since, found.held_tries = NOW_MS - 70_000, 3
    group = group_of("billing", queues_of([found]), tps=2.0, stats=[found])
    assert (group.held_since_ms, group.held_tries) == (NOW_MS - 70_000, 3)
    call = {"msgId": "M", "queueOffset": 5, "since": NOW_MS - 180_000, "tries": 2}
    queues = queues_of([stats()], 30.0, [member(181, inHand=[call])])
    group = group_of("billing", queues, tps=2.0)
    assert (group.held_since_ms, group.held_tries) == (NOW_MS - 180_000, 2)


def test_a_group_names_the_queue_that_is_stuck_longest() -> None:
    group = group_of("billing", queues_of([stats()]), tps=2.0, members=0, now_ms=NOW_MS)
    assert (group.is_stuck, group.stuck_since_ms) == (True, NOW_MS - 60_000)
    assert group.verdict == "stuck for 60 s at offset 5 of Orders, a, queue 0; it has no member"
