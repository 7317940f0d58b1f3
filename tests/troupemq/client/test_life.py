"""Life of a message at a real broker: delays, retries, dead letters, filters, and open calls."""

from contextlib import ExitStack
from datetime import timedelta
from threading import Event

import pytest

from protocol.topic_names import SCHEDULE_TOPIC
from tests.compat.patience import wait_until
from tests.troupemq.client.copies import TOPIC
from troupemq.client.admin import Admin
from troupemq.client.admin.life import LifeEvent, MessageLife
from troupemq.client.admin.messages import MessageTrack
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import Listener, RetryLater
from troupemq.client.errors import MessageNotFound, RouteNotFound
from troupemq.client.message import Message
from troupemq.client.producing.producer import Producer
from troupemq.client.settings import ConsumerSettings, ProducerSettings
from troupemq.redrive import Redrive
from troupemq.testing import LocalBroker


@pytest.fixture
def admin(local_broker: LocalBroker) -> Admin:
    local_broker.admin.create_topic(TOPIC, 2)
    return local_broker.admin


def consumer(admin: Admin, group: str, listener: Listener, tags: str = "*") -> PushConsumer:
    settings = ConsumerSettings(
        max_reconsume_times=1, consume_threads=1, commit_interval_ms=100, suspend_ms=500
    )
    made = PushConsumer(
        group,
        listener,
        str(admin.namesrv),
        begin=ConsumeFrom.FIRST_OFFSET,
        settings=settings,
        instance_name=group,
    )
    made.subscribe(TOPIC, tags)
    return made


def send(admin: Admin, *keys: str, level: int = 0) -> str:
    settings = ProducerSettings(trace=True)
    with Producer("till", str(admin.namesrv), settings=settings) as producer:
        message = Message(TOPIC, b"body", "paid", keys, delay_level=level)
        return producer.send(message).message_id


def life_of(admin: Admin, key: str) -> MessageLife:
    (found,) = admin.message_lives(key)
    return found


def stages(life: MessageLife, group: str | None = None) -> list[str]:
    return [each.what for each in life.events if each.group == group]


def one(life: MessageLife, what: str) -> LifeEvent:
    (found,) = (each for each in life.events if each.what == what)
    return found


def test_a_message_is_followed_from_its_send_to_its_redriven_copy(admin: Admin) -> None:
    """With a group that fails, one that does not want its tag, and one that never returns."""
    stuck, release, called = Event(), Event(), Event()

    def fail(_: object) -> None:
        raise RetryLater(delay_level=1, reason="no stock\nleft")

    def hang(_: object) -> None:
        called.set()
        release.wait(30)

    with ExitStack() as stack:
        stack.callback(release.set)
        stack.callback(stuck.set)
        for group, listener, tags in (("stock", fail, "*"), ("picky", hang, "other")):
            stack.enter_context(consumer(admin, group, listener, tags))
        hung = stack.enter_context(consumer(admin, "hung", hang))
        message_id = send(admin, "4711")
        wait_until(lambda: admin.message_count("%DLQ%stock") == 1, "the message is a dead letter")
        assert called.wait(10)
        picky = MessageTrack("picky", "filtered")
        (view,) = admin.query_by_key(TOPIC, message_id)
        wait_until(lambda: picky in admin.message_tracks(view), "the filtering group has passed it")
        Redrive("stock", str(admin.namesrv), rate=100, wait=bool).run()
        wait_until(lambda: "sent" in stages(life_of(admin, message_id)), "the trace is stored")
        life = life_of(admin, message_id)
        release.set()
    assert (life.topic, life.tags, life.keys) == (TOPIC, "paid", ("4711",))
    assert stages(life) == ["sent", "stored", "indexed"]
    assert one(life, "sent").took_ms is not None, "by its trace"
    assert stages(life, "stock") == ["retried", "due", "dead", "redriven"]
    retried, dead, redriven = (one(life, what) for what in ("retried", "dead", "redriven"))
    assert "reason: no stock left" in retried.detail and "reason: no stock left" in dead.detail
    assert (retried.tries, dead.topic) == (1, "%DLQ%stock")
    assert redriven.topic == TOPIC
    assert redriven.message_id not in (None, message_id)
    assert stages(life, "picky") == ["filtered"]
    delivered = one(life, "delivered")
    assert (delivered.group, delivered.client) == ("hung", hung.client_id)
    assert delivered.detail == "its listener has not returned"
    times = [each.time_ms for each in life.events]
    assert times == sorted(times, key=lambda each: each or 1 << 62)
    assert life.unknown == ("No consumer traces: who consumed it, and when, is not recorded.",)


def test_a_delay_and_a_group_without_members_are_told(admin: Admin) -> None:
    with consumer(admin, "billing", lambda _: None):
        message_id = send(admin, "4712", level=1)
        wait_until(lambda: admin.message_count(TOPIC) == 1, "the message is due")
        (view,) = admin.query_by_key(TOPIC, message_id)
        done = MessageTrack("billing", "consumed")
        wait_until(lambda: done in admin.message_tracks(view), "it is consumed")
    life = life_of(admin, "4712")
    assert stages(life) == ["sent", "delayed", "due", "stored", "indexed"]
    assert "delay level 1, due at" in one(life, "delayed").detail
    assert stages(life, "billing") == ["passed"], "also after its members have left"
    assert life_of(admin, view.offset_message_id).message_id == message_id
    assert admin.life_of(view)[0].events == life.events
    assert one(life, "passed").sentence.startswith("passed by billing: its offset is consumed")


def test_a_timer_has_one_delay_up_to_its_time(local_broker: LocalBroker, admin: Admin) -> None:
    """A timer beyond the longest level is stored again on its way."""
    with Producer("till", str(admin.namesrv)) as producer:
        producer.send(Message(TOPIC, b"body", keys="4713", delay=timedelta(hours=3)))
    local_broker.advance("2h 5s")
    wait_until(lambda: len(admin.query_by_key(SCHEDULE_TOPIC, "4713")) == 2, "it waits again")
    local_broker.advance("1h")
    wait_until(lambda: len(admin.query_by_key(TOPIC, "4713")) == 1, "it is due")
    life = life_of(admin, "4713")
    assert stages(life) == ["sent", "delayed", "due", "stored", "indexed"]
    assert one(life, "delayed").detail.startswith("timer, due at ")


def test_every_message_with_a_key_has_a_life_and_an_unknown_key_is_an_error(admin: Admin) -> None:
    ids = [send(admin, "same"), send(admin, "same")]
    wait_until(lambda: len(admin.query_by_key(TOPIC, "same")) == 2, "both are indexed")
    assert [each.message_id for each in admin.message_lives("same", topic=TOPIC)] == ids
    with pytest.raises(MessageNotFound, match="no message with the key or id absent is in any"):
        list(admin.message_lives("absent"))
    with pytest.raises(MessageNotFound, match="no message with the key or id absent is in"):
        list(admin.message_lives("absent", topic=TOPIC))
    with pytest.raises(RouteNotFound, match="knows the topic Ordres"):
        list(admin.message_lives("same", topic="Ordres"))
