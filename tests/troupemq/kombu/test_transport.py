"""kombu on a broker: routing, settlement, priorities, delays and ends.

Each connection has a state of its own, so that two connections meet as two processes do.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from threading import enumerate as live_threads
from time import process_time
from types import SimpleNamespace
from typing import Any

import pytest

kombu = pytest.importorskip("kombu", reason="kombu is not installed")
# ruff: noqa: E402

from kombu import Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES

from protocol.properties import TROUPE_FAILURE
from tests.compat.patience import wait_until
from tests.support.unreadable import UNREADABLE, send_unreadable
from troupemq import Message
from troupemq import Producer as PlainProducer
from troupemq.client.errors import ArgumentIllegal, BrokerError, ConnectionFailed
from troupemq.kombu import Transport, fetching
from troupemq.kombu.readers import ReadQueue
from troupemq.testing import LocalBroker, running_broker

Connect = Callable[..., Any]

WAIT_S = 10.0


def received(connection: Any, queue: Queue, count: int, prefetch_count: int = 0) -> list[Any]:
    """Return messages of a queue, not acknowledged."""
    found: list[Any] = []
    with Consumer(
        connection, [queue], on_message=found.append, prefetch_count=prefetch_count or None
    ):
        while len(found) < count:
            connection.drain_events(timeout=WAIT_S)
    return found


def send(connection: Any, body: str, queue: Queue, **options: Any) -> None:
    Producer(connection.default_channel).publish(
        body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **options
    )


def queue_of(name: str, **options: Any) -> Queue:
    return Queue(name, Exchange(name), name, **options)


def test_import_makes_the_schemes_known() -> None:
    assert TRANSPORT_ALIASES["troupemq"] == TRANSPORT_ALIASES["troupemqs"]
    assert kombu.Connection("troupemq://a:1//").transport_cls == "troupemq"
    assert Transport.implements.asynchronous


def test_message_goes_from_one_connection_to_another(connect: Connect) -> None:
    queue = queue_of("plain")
    send(connect(), "hello", queue, headers={"id": "4711", "task": "shop.ship"})
    (message,) = received(connect(), queue, 1)
    assert message.payload == "hello"
    assert message.delivery_info["routing_key"] == "plain"
    message.ack()


def test_acknowledged_messages_do_not_come_again(broker: LocalBroker, connect: Connect) -> None:
    queue, connection = queue_of("acked"), connect()
    for number in range(5):
        send(connection, str(number), queue)
    for message in received(connection, queue, 5):
        message.ack()
    connection.release()
    broker.join("k-acked")
    assert connect().default_channel.basic_get("acked") is None


def test_unsettled_messages_come_again_after_the_connection(connect: Connect) -> None:
    queue, first = queue_of("unsettled"), connect()
    send(first, "task", queue)
    (message,) = received(first, queue, 1)
    assert not message.delivery_info.get("redelivered")
    first.release()
    (again,) = received(connect(), queue, 1)
    assert again.payload == "task"
    assert again.delivery_info["redelivered"]
    again.ack()


def test_requeued_message_comes_again_often(broker: LocalBroker, connect: Connect) -> None:
    queue, connection = queue_of("requeued"), connect()
    send(connection, "task", queue)
    for _ in range(20):  # more often than retries are allowed after kills
        (message,) = received(connection, queue, 1)
        message.requeue()
    (message,) = received(connection, queue, 1)
    assert message.delivery_info["redelivered"]
    message.ack()
    assert not broker.dead_letters("k-requeued")


def test_rejected_and_unreadable_messages_are_dead_letters() -> None:
    # Looking for dead letters may move the clock of the broker: other tests need theirs.
    queue = queue_of("poisoned")
    with (
        running_broker() as broker,
        kombu.Connection(f"troupemq://{broker.namesrv}//") as connection,
    ):
        send(connection, "task", queue)
        with PlainProducer("other", broker.namesrv) as producer:
            producer.send(Message("k-poisoned", b"no task"))
            producer.send(Message("k-poisoned", b"[" * 3000))
        send_unreadable(broker, "k-poisoned")
        (message,) = received(connection, queue, 1)
        message.reject()
        dead = broker.expect_dead_letters("k-poisoned", times=4)
        ends = sorted(each.stored_body.rpartition(b"\n")[2] for each in dead)
        assert ends == [b"[" * 3000, b"no task", UNREADABLE, b"task"]
        reasons = sorted(each.properties.get(TROUPE_FAILURE, "") for each in dead)
        assert [reason.partition(":")[0] for reason in reasons[2:]] == ["unreadable headers"] * 2
        send(connection, "next", queue)
        (message,) = received(connection, queue, 1)
        message.ack()


def test_acknowledgements_outlast_a_stall_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection holds the messages on: finished tasks would run again after a stop."""
    monkeypatch.setattr("troupemq.client.receiving.flows.SETTLE_TIMEOUT_MS", 200)
    monkeypatch.setattr("troupemq.client.receiving.flows.SETTLE_TRY_MS", 100)
    monkeypatch.setattr("troupemq.kombu.fetching.REST_S", 0.05)
    queue = queue_of("stalled")
    with running_broker() as own, kombu.Connection(f"troupemq://{own.namesrv}//") as connection:
        for number in range(2):
            send(connection, str(number), queue)
        finished, rejected = received(connection, queue, 2)
        own.lose("ack", times=1)
        own.lose("CONSUMER_SEND_MSG_BACK", times=1)
        finished.ack()
        rejected.reject()
        own.expect_dead_letters("k-stalled")
        own.join("k-stalled")


def test_dead_broker_costs_no_acknowledgement_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("troupemq.kombu.fetching.REST_S", 0.01)
    failures, done = [1, 2], Event()

    class Consumer:
        def ack(self, deliveries: list[Any]) -> None:
            if deliveries[0].receipt.broker_name == "dead" and failures:
                raise ConnectionFailed(f"{failures.pop()}: connection refused")
            for each in deliveries:
                each.is_settled = True
            if all(each.is_settled for each in several):
                done.set()

    consumer = Consumer()
    several: list[Any] = [
        SimpleNamespace(
            consumer=consumer, receipt=SimpleNamespace(broker_name=name), is_settled=False
        )
        for name in ("dead", "alive", "dead")
    ]
    settler = fetching.SettlingThread()
    settler.ack(several)
    assert done.wait(WAIT_S)
    settler.flush()
    settler.stop()


def test_task_that_is_given_back_during_a_stop_exists_once(
    broker: LocalBroker, connect: Connect
) -> None:
    """The worker's held receive may get what its stop has just sent again (celery #4002)."""
    connection, queue = connect(), queue_of("returned")
    send(connection, "task", queue)
    fetcher = connection.default_channel._fetcher("returned")
    found = fetcher.get(1, WAIT_S * 1000)
    broker.slow(300, "send", times=1)
    giving = Thread(target=fetcher.give_back, args=(found,))
    giving.start()
    link = connection.transport.shared.link
    wait_until(lambda: link._in_flight.count > 0, "the copy under way", WAIT_S)
    connection.release()
    giving.join()
    (message,) = received(connect(), queue, 1)
    message.ack()
    broker.join("k-returned")
    stored = [len(broker.messages(topic)) for topic in ("k-returned", "%RETRY%k-returned")]
    assert stored == [2, 0], "the task and its copy"


def test_threads_take_and_remove_messages_one_at_a_time(connect: Connect) -> None:
    """A cancellation must not miss what comes meanwhile (celery #2564)."""
    connection = connect()
    channel, shared = connection.default_channel, connection.transport.shared
    reader: Any = ReadQueue("passing")
    reader.ready.append(({"properties": {}}, SimpleNamespace(store_timestamp_ms=0)))
    takes = [lambda: channel._take("lasting", [({}, None)]), lambda: channel._take_read(reader)]
    threads = [Thread(target=take) for take in takes]
    with shared.changed:
        for thread in threads:
            thread.start()
            thread.join(0.05)
        assert (len(channel._ready), len(reader.ready)) == (0, 1)
    for thread in threads:
        thread.join()
    assert (len(channel._ready), len(reader.ready)) == (2, 0)
    channel._ready.clear()


def test_later_task_is_held_by_the_worker_while_brokers_refuse_it() -> None:
    """A task that came too early goes back to the broker's timers; else no batch was delivered."""
    queue = queue_of("early")
    due = datetime.now(UTC) + timedelta(hours=30)  # more than one timer: it comes once before
    with running_broker() as own, kombu.Connection(f"troupemq://{own.namesrv}//") as connection:
        send(connection, "later", queue, headers={"eta": due.isoformat()})
        fault = own.fail("send", "SYSTEM_BUSY")
        own.advance("24h")
        (message,) = received(connection, queue, 1)
        fault.is_ended = True
        assert message.payload == "later"
        message.ack()


def test_foreign_bindings_cannot_stop_a_publisher(broker: LocalBroker, connect: Connect) -> None:
    exchange = Exchange("hostile", type="topic")
    connection = connect()
    queue = Queue("hostile-readers", exchange, "#")
    queue(connection.default_channel).declare()
    records = [
        {"exchange": "hostile", "type": "headers", "queue": "a", "key": "#"},
        {"exchange": "hostile", "type": "topic", "queue": "b", "key": "#." * 5000 + "x"},
        {"exchange": "hostile", "type": "topic", "queue": "c", "key": "#." * 100 + "x"},
    ]
    bodies = [*(json.dumps(record).encode() for record in records), b"[" * 3000]
    topic = connection.transport.shared.link.place.bindings
    with PlainProducer("other", broker.namesrv) as producer:
        for body in bodies:
            producer.send(Message(topic, body))
    publisher = Producer(connect().default_channel, exchange)
    begun_s = process_time()
    publisher.publish("news", routing_key=".".join("a" * 127))
    assert process_time() - begun_s < 1
    (message,) = received(connection, queue, 1)
    assert message.payload == "news"
    message.ack()
    with pytest.raises(ChannelError, match="255 characters"):
        Queue("long", exchange, "x" * 256)(connection.default_channel).declare()


def test_high_priorities_come_first(connect: Connect) -> None:
    queue, connection = queue_of("ranked"), connect()
    for priority in (0, 9, 3, 6, 0, 9):
        send(connection, str(priority), queue, priority=priority)
    found = received(connection, queue, 6)
    assert [each.payload for each in found] == ["9", "9", "6", "3", "0", "0"]
    for each in found:
        each.ack()


def test_publication_survives_a_passing_failure(broker: LocalBroker, connect: Connect) -> None:
    """With several brokers another one takes the task; it keeps its priority."""
    connection, queue = connect(), queue_of("persistent")
    send(connection, "first", queue)
    broker.fail("send", "SYSTEM_ERROR", times=1)
    send(connection, "second", queue, priority=9)
    found = received(connection, queue, 2)
    assert [each.payload for each in found] == ["second", "first"]
    for each in found:
        each.ack()


def test_prefetch_count_leaves_messages_to_others(connect: Connect) -> None:
    queues = [queue_of("shared-1"), queue_of("shared-2")]
    first, second = connect(), connect()
    for queue in queues:
        for number in range(4):
            send(first, f"{queue.name} {number}", queue)
    found: list[Any] = []
    others: list[Any] = []
    with Consumer(first, queues, on_message=found.append, prefetch_count=3):
        while len(found) < 3:
            first.drain_events(timeout=WAIT_S)
        with pytest.raises(TimeoutError):
            first.drain_events(timeout=0.2)
        with Consumer(second, queues, on_message=others.append):
            while len(others) < 5:
                second.drain_events(timeout=WAIT_S)
    assert len({each.payload for each in found + others}) == 8
    for each in found + others:
        each.ack()


def test_topic_exchange_finds_queues_that_others_bound(connect: Connect) -> None:
    exchange = Exchange("news", type="topic")
    first, second = connect(), connect()
    Queue("sport", exchange, "news.sport.#")(first.default_channel).declare()
    publisher = Producer(second.default_channel, exchange)
    for key in ("news.sport.chess", "news.weather"):
        publisher.publish(key, routing_key=key, declare=[exchange])
    (message,) = received(connect(), Queue("sport", exchange, "news.sport.#"), 1)
    assert message.payload == "news.sport.chess"
    message.ack()


def test_unbound_queue_gets_nothing_more(connect: Connect) -> None:
    exchange = Exchange("left", type="direct")
    first, second = connect(), connect()
    bound = Queue("leaving", exchange, "key")(first.default_channel)
    bound.declare()
    bound.unbind_from(exchange, "key")
    Producer(second.default_channel, exchange).publish("x", routing_key="key", declare=[exchange])
    assert second.default_channel.basic_get("leaving") is None


@pytest.mark.parametrize("auto_delete", [False, True])
def test_binding_that_failed_is_tried_again(
    broker: LocalBroker, connect: Connect, auto_delete: bool
) -> None:
    """kombu notes a binding before it is made: the queue would get nothing for ever."""
    exchange = Exchange(f"again-{auto_delete}", type="topic")
    queue = Queue(f"bound-{auto_delete}", exchange, "news.#", auto_delete=auto_delete)
    connection = connect()
    bound = queue(connection.default_channel)
    bound.exchange.declare()
    bound.queue_declare()
    broker.fail("send", "SYSTEM_BUSY", times=1)
    with pytest.raises(BrokerError):
        bound.queue_bind()
    bound.declare()
    Producer(connect().default_channel, exchange).publish("news", routing_key="news.sport")
    (message,) = received(connection, queue, 1)
    assert message.payload == "news"
    message.ack()


def test_fanout_reaches_queues_of_every_kind(broker: LocalBroker, connect: Connect) -> None:
    exchange = Exchange("all", type="fanout", durable=False)
    lasting = Queue("lasting", exchange)
    first, second, third = connect(), connect(), connect()
    lasting(first.default_channel).declare()
    passing = Queue("passing", exchange, auto_delete=True)
    passing(second.default_channel).declare()
    Producer(third.default_channel, exchange).publish("news", declare=[exchange])
    assert [each.payload for each in received(first, lasting, 1)] == ["news"]
    assert [each.payload for each in received(second, passing, 1)] == ["news"]
    topics = broker.admin.topics()
    assert "kx-all" in topics
    assert "k-passing" not in topics


def test_slow_consumer_leaves_messages_at_the_broker(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that a monitor cannot follow filled its memory."""
    monkeypatch.setattr("troupemq.kombu.readers.WAITING_MAX", 40)
    exchange = Exchange("flood", type="fanout", durable=False)
    slow, fast, third = connect(), connect(), connect()
    queues = [Queue(name, exchange, auto_delete=True) for name in ("slow", "fast")]
    for connection, queue in zip((slow, fast), queues, strict=True):
        queue(connection.default_channel).declare()
    producer = Producer(third.default_channel, exchange)
    with producer.batch():
        for number in range(200):
            producer.publish(str(number))
    found: list[Any] = []
    with Consumer(slow, [queues[0]], on_message=found.append, no_ack=True):
        assert len(received(fast, queues[1], 200)) == 200
        assert len(slow.default_channel._ready) < 80
        while len(found) < 200:
            slow.drain_events(timeout=WAIT_S)
    assert [each.payload for each in found] == [str(number) for number in range(200)]


def test_reply_queues_leave_nothing_behind(broker: LocalBroker, connect: Connect) -> None:
    exchange = Exchange("replies", type="direct", durable=False, delivery_mode="transient")
    asking, answering = connect(), connect()
    channel, publisher = asking.default_channel, Producer(answering.default_channel, exchange)
    before: list[str] = []
    for number in range(20):
        queue = Queue(f"reply-{number}", exchange, f"key-{number}", auto_delete=True)(channel)
        queue.declare()
        for key in (f"key-{number}", "key-of-another"):
            publisher.publish(key, routing_key=key, declare=[exchange])
        (message,) = received(asking, queue, 1)
        assert message.payload == f"key-{number}"
        queue.delete()
        before = before or sorted(broker.admin.topics())
    assert sorted(broker.admin.topics()) == before
    assert not channel.connection.shared.read_queues


def test_reply_to_a_queue_by_its_name(connect: Connect) -> None:
    asking, answering = connect(), connect()
    replies = Queue("asker", exclusive=True, auto_delete=True)(asking.default_channel)
    replies.declare()
    found: list[Any] = []
    with Consumer(asking, [replies], on_message=found.append):
        Producer(answering.default_channel).publish("reply", routing_key="asker")
        asking.drain_events(timeout=WAIT_S)
    assert [each.payload for each in found] == ["reply"]


def test_replies_wait_until_another_connection_of_the_process_reads(connect: Connect) -> None:
    declaring, reading, answering = connect(), connect(), connect()
    Queue("asker-2", auto_delete=True)(declaring.default_channel).declare()
    publisher = Producer(answering.default_channel)
    publisher.publish("early", routing_key="asker-2")
    replies = Queue("asker-2", auto_delete=True)
    assert [each.payload for each in received(reading, replies, 1)] == ["early"]
    publisher.publish("late", routing_key="asker-2")
    assert [each.payload for each in received(reading, replies, 1)] == ["late"]


def test_expired_messages_are_not_delivered() -> None:
    # A broker of its own: other tests have moved the clock of theirs away from the worker's.
    with running_broker() as own, kombu.Connection(f"troupemq://{own.namesrv}//") as connection:
        queue = queue_of("brief", message_ttl=0)
        send(connection, "by the queue", queue)
        send(connection, "lasts", queue_of("brief-2"))
        send(connection, "by itself", queue_of("brief-2"), expiration=0)
        with pytest.raises(TimeoutError), Consumer(connection, [queue], on_message=print):
            connection.drain_events(timeout=0.3)
        found = received(connection, queue_of("brief-2"), 1)
        assert [each.payload for each in found] == ["lasts"]
        found[0].ack()


def test_long_delays_wait_in_the_broker(broker: LocalBroker, connect: Connect) -> None:
    connection, queue = connect(), queue_of("later")
    eta = datetime.now(UTC) + timedelta(minutes=90)
    send(connection, "in 90 minutes", queue, headers={"eta": eta.isoformat()})
    soon = datetime.now(UTC) + timedelta(seconds=30)
    send(connection, "the worker waits", queue, headers={"eta": soon.isoformat()})
    (message,) = received(connection, queue, 1)
    assert message.payload == "the worker waits"
    message.ack()
    broker.advance("89m")
    assert connection.default_channel.basic_get("later") is None
    broker.advance("1m")
    (message,) = received(connection, queue, 1)
    assert message.payload == "in 90 minutes"
    message.ack()


def test_size_purge_and_deletion(broker: LocalBroker, connect: Connect) -> None:
    connection = connect()
    channel = connection.default_channel
    queue = queue_of("counted")(channel)
    queue.declare()
    for number in range(3):
        send(connection, str(number), queue)
    assert channel.queue_declare("counted", passive=True).message_count == 3
    assert queue.purge() == 3
    assert channel.queue_declare("counted", passive=True).message_count == 0
    queue.delete()
    assert "k-counted" not in broker.admin.topics()
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        connect().default_channel.queue_declare("counted", passive=True)


def test_unacknowledged_consumers_take_messages_as_settled(
    broker: LocalBroker, connect: Connect
) -> None:
    connection, queue = connect(), queue_of("careless")
    send(connection, "task", queue)
    found: list[Any] = []
    with Consumer(connection, [queue], on_message=found.append, no_ack=True):
        connection.drain_events(timeout=WAIT_S)
    connection.release()
    broker.join("k-careless")
    assert len(found) == 1


def test_closed_connections_leave_no_threads(connect: Connect) -> None:
    before = {thread.name for thread in live_threads()}
    connection, queue = connect(), queue_of("threads")
    send(connection, "task", queue)
    (message,) = received(connection, queue, 1)
    message.ack()
    connection.release()
    left = {thread.name for thread in live_threads()} - before
    assert not {name for name in left if name.startswith("troupemq")}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_reconsume_time": 3}, "unknown transport option max_reconsume_time: did you mean"),
        ({"max_reconsume_times": "3"}, "max_reconsume_times is '3', and not an integer"),
        ({"confirm_publish": "no"}, "confirm_publish is True or False, and not 'no'"),
    ],
)
def test_a_wrong_transport_option_had_no_effect_and_no_error(
    connect: Connect, options: dict[str, object], told: str
) -> None:
    with pytest.raises(ArgumentIllegal, match=told):
        connect(transport_options=options).channel()
    connect(transport_options={"visibility_timeout": 3600}).channel()  # of other transports
