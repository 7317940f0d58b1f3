"""Timers from transactions, retries, batches and replication."""

from dataclasses import replace

import pytest

from protocol.batch import BatchMessage, encode_batch
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.properties import pairs_of
from protocol.timers import due_of
from tests.actors.delays.test_timers import ILLEGAL, bodies, broker, timed, waiting
from tests.actors.replication.test_change_of_roles import becomes_master
from tests.support.replication import TOPIC
from tests.support.slave_tables import following
from tests.support.transacting import COMMIT, half, sending
from tests.support.transacting import broker as transactional
from tests.support.transacting import end as end_transaction

RETRY = "%RETRY%consumers"


@pytest.mark.parametrize("name, value", [("TIMER_DELAY_MS", 9_300), ("TIMER_DELIVER_MS", 0)])
def test_half_message_waits_after_its_commit(name: str, value: int) -> None:
    """A delay counts from the commit, as in 5.x."""
    made = transactional(store=replace(broker().store_config))
    prepared = half(made, properties={name: value or made.clock.now_ms() + 14_300})
    made.system.advance(5_000)
    assert end_transaction(made, prepared, COMMIT).code == 0
    made.system.advance(9_000)
    assert made.messages() == []
    made.system.advance(500)
    (message,) = made.messages()
    assert message.sys_flag == COMMIT
    assert b"TRAN_MSG" in message.properties and b"\x02DELAY\x01" not in message.properties


def test_half_message_that_is_due_at_its_commit_is_delivered_at_once() -> None:
    made = transactional(store=broker().store_config)
    prepared = half(made, properties={"TIMER_DELIVER_MS": made.clock.now_ms() + 1_000})
    made.system.advance(5_000)
    assert end_transaction(made, prepared, COMMIT).code == 0
    assert len(made.messages()) == 1


def test_impossible_timer_of_a_half_message_is_refused_at_the_send() -> None:
    made = transactional()
    answer = made.send(**sending("K", properties={"TIMER_DELAY_SEC": "x"}))
    assert (answer.code, answer.remark) == (1, ILLEGAL.format(259_200_000))


def test_batch_with_a_timer_is_refused_and_one_without_is_stored() -> None:
    made = broker()
    plain = BatchMessage(b"plain", b"UNIQ_KEY\x01A")
    timer = BatchMessage(b"timer", b"UNIQ_KEY\x01B\x02TIMER_DELAY_MS\x011000")
    for messages in ([plain, timer], [timer, timer], [timer]):
        answer = made.send(encode_batch(messages), batch=True)
        assert answer.code == 13
        assert (answer.remark or "").startswith("a batch cannot hold a timer")
    assert made.send(encode_batch([plain, plain]), batch=True).code == 0
    assert made.send(encode_batch([plain]), batch=True, properties="TIMER_DELAY_MS\x015").code == 13
    assert bodies(made) == [b"plain"] * 2


def test_retry_comes_after_the_delay_that_its_consumer_names() -> None:
    made = broker()
    record = made.stored(made.send(b"x", properties="UNIQ_KEY\x01u\x02TIMER_DELAY_MS\x010"))
    header = ConsumerSendMsgBackHeader(
        record.physical_offset, "consumers", 1, delay_ms=7_300, failure="why"
    )
    command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode(), version=407)
    assert made.ask(command).code == 0
    made.system.advance(7_250)
    assert made.messages(RETRY) == []
    made.system.advance(200)
    (found,) = made.messages(RETRY)
    pairs = pairs_of(found.properties)
    assert (found.reconsume_times, pairs[b"RETRY_TOPIC"]) == (1, b"Topic")
    assert pairs[b"TROUPE_FAILURE"] == b"why"
    made.ask(replace(command, fields={**header.encode(), "offset": str(found.physical_offset)}))
    made.system.advance(8_000)
    assert [each.reconsume_times for each in made.messages(RETRY)] == [1, 2]


def test_retry_of_a_delivered_timer_by_level_is_no_timer() -> None:
    made = broker()
    timed(made, b"x", 500)
    made.system.advance(1_000)
    (record,) = made.messages()
    header = ConsumerSendMsgBackHeader(record.physical_offset, "consumers", 2)
    command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode(), version=407)
    assert made.ask(command).code == 0
    assert due_of(waiting(made)[-1].properties) == 0
    made.system.advance(5_500)
    assert len(made.messages(RETRY)) == 1


def test_timer_sent_to_a_retry_topic_waits_and_has_no_recall_handle() -> None:
    made = broker()
    made.make_group()
    made.make_topic(RETRY, queues=1)
    answer = timed(made, b"x", 2_000, topic=RETRY)
    assert "recallHandle" not in (answer.fields or {})
    made.system.advance(1_900)
    assert made.messages(RETRY) == []
    made.system.advance(300)
    assert len(made.messages(RETRY)) == 1


def test_promoted_slave_delivers_what_waits_and_not_what_its_master_delivered() -> None:
    with following() as (pair, _):
        pair.master.make_topic(TOPIC)
        for delay_ms in (3_000, 90_000):
            text = f"TIMER_DELAY_MS\x01{delay_ms}\x02UNIQ_KEY\x01{delay_ms}\x02"
            pair.send(b"%d" % delay_ms, topic=TOPIC, queue_id=0, properties=text)
        for body, delay in ((b"late", 900_000), (b"early", 601_000)):  # of the level of the other
            text = f"TIMER_DELAY_MS\x01{delay}\x02"
            pair.send(body, topic=TOPIC, queue_id=0, properties=text)
        pair.advance(200)
        pair.master.clock.set_wall(pair.master.clock.now_ms() + 602_000)
        pair.advance(35_000)
        delivered = [each.body for each in pair.master.messages(TOPIC)]
        assert sorted(delivered) == [b"3000", b"90000", b"early"]
        pair.send(b"last", topic=TOPIC, queue_id=0, properties="TIMER_DELAY_MS\x01300\x02")
        pair.advance(800)  # no copy of the offsets in between
        assert pair.master.messages(TOPIC)[-1].body == b"last"
        pair.slave.start_ms = pair.master.clock.now_ms()
        new = becomes_master(pair)
        new.clock.set_wall(pair.master.clock.now_ms())
        new.system.advance(5_000)
        assert new.broker.timer_figures.pending == 1
        new.clock.set_wall(new.clock.now_ms() + 600_000)
        new.system.advance(5_000)
        bodies = [each.body for each in new.messages(TOPIC)]
        assert sorted(bodies) == [b"3000", b"90000", b"early", b"last", b"late"]


def test_promoted_slave_repeats_no_timer_of_a_master_that_had_none_before() -> None:
    """The last copy of the table did not say from where a start looks for delivered timers."""
    with following() as (pair, _):
        pair.master.make_topic(TOPIC)
        pair.advance(25_000)
        for delay_ms in (300, 3_000):
            text = f"TIMER_DELAY_MS\x01{delay_ms}\x02"
            pair.send(b"%d" % delay_ms, topic=TOPIC, queue_id=0, properties=text)
        pair.advance(900)  # no copy of the offsets in between
        assert [each.body for each in pair.master.messages(TOPIC)] == [b"300"]
        pair.slave.start_ms = pair.master.clock.now_ms()
        new = becomes_master(pair)
        new.system.advance(5_000)
        assert [each.body for each in new.messages(TOPIC)] == [b"300", b"3000"]
