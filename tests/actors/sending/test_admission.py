"""A send that has arrived is admitted, parked for its topic, or sent on to the dead letters."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.network.messages import Sends
from actors.sending import admission
from protocol.batch import BatchMessage, encode_batch
from protocol.codes import (
    BORN_HOST_V6,
    MULTI_TAGS,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    RequestCode,
    ResponseCode,
)
from protocol.frame import RemotingCommand
from protocol.send_values import send_of
from tests.support.actors import addresses
from tests.support.brokers import BROKER, STORE, FramesPeer, SimulatedBroker, send_command

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


def broker(**settings: Any) -> SimulatedBroker:
    made = SimulatedBroker(11, config=replace(BROKER, **settings))
    made.make_topic()
    return made


def topic_of(made: SimulatedBroker, name: str) -> tuple[int, int, int, int]:
    config = made.broker.tables.topics.value[name]
    return config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag


# --- retries and dead letters


def test_a_send_creates_a_missing_retry_topic() -> None:
    made = broker(auto_create_topic_enable=False)
    made.make_group()
    assert made.send(topic="%RETRY%consumers").code == ResponseCode.SUCCESS
    assert topic_of(made, "%RETRY%consumers") == (1, 1, 6, 0)
    made.make_group("united")
    assert made.send(topic="%RETRY%united", unit_mode=True).code == ResponseCode.SUCCESS
    assert topic_of(made, "%RETRY%united") == (1, 1, 6, 2)


def test_a_retry_of_an_unknown_group_is_refused() -> None:
    made = broker(auto_create_group_enable=False)
    remark = f"subscription group not exist, nobody {FAQ}"
    answer = made.send(topic="%RETRY%nobody")
    assert (answer.code, answer.remark) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    made.make_group("nobody")
    assert made.send(topic="%RETRY%nobody").code == ResponseCode.SUCCESS


def test_with_auto_creation_an_unknown_group_is_created() -> None:
    made = broker()
    assert made.send(topic="%RETRY%somebody").code == ResponseCode.SUCCESS
    made.system.advance(100)
    assert "somebody" in made.broker.tables.groups.value


def test_over_its_limit_a_retry_becomes_a_dead_letter_in_order() -> None:
    made = broker()
    made.make_group(retry_max_times=3)
    answers = [
        made.start_send(
            b"%d" % number, topic="%RETRY%consumers", reconsume_times=3 if number % 3 else 2
        )
        for number in range(9)
    ]
    made.system.advance(1000)
    assert [each[0].code for each in answers] == [0] * 9
    assert topic_of(made, "%DLQ%consumers") == (1, 1, 6, 0)
    dead = made.messages("%DLQ%consumers")
    assert [record.body for record in dead] == [b"1", b"2", b"4", b"5", b"7", b"8"]
    assert {record.reconsume_times for record in dead} == {3}
    retried = made.messages("%RETRY%consumers")
    assert [record.body for record in retried] == [b"0", b"3", b"6"]
    assert [int((each[0].fields or {})["queueId"]) for each in answers] == [0] * 9


def test_a_dead_letter_goes_to_queue_0_and_its_answer_names_the_requested_queue() -> None:
    made = broker()
    made.make_group()
    made.make_topic("%RETRY%consumers", queues=4)
    answer = made.send(topic="%RETRY%consumers", queue_id=2, reconsume_times=16)
    assert (answer.fields or {})["queueId"] == "2"
    record = made.stored(answer)
    assert (record.topic, record.queue_id) == ("%DLQ%consumers", 0)


@pytest.mark.parametrize(
    ("version", "limit", "times", "dead"),
    [
        (407, 5, 4, False),
        (407, 5, 5, True),
        (121, 1, 1, True),
        (120, 1, 1, False),
        (407, None, 15, False),
        (407, None, 16, True),
        (407, -1, 0, True),
    ],
)
def test_a_new_client_sets_its_own_retry_limit(
    version: int, limit: int | None, times: int, dead: bool
) -> None:
    made = broker()
    made.make_group()
    command = send_command(
        topic="%RETRY%consumers", max_reconsume_times=limit, reconsume_times=times
    )
    command.version = version
    record = made.stored(made.ask(command))
    assert record.topic == ("%DLQ%consumers" if dead else "%RETRY%consumers")


def test_a_delayed_dead_letter_is_delayed_first() -> None:
    """An orderly consumer of 4.9.7 sends it with a delay, which survives the move."""
    made = broker()
    made.make_group()
    answer = made.send(
        topic="%RETRY%consumers", reconsume_times=1, max_reconsume_times=1, properties="DELAY\x014"
    )
    record = made.stored(answer)
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", 3)
    assert b"REAL_TOPIC\x01%DLQ%consumers\x02REAL_QID\x010" in record.properties


# --- parked for a topic


def test_sends_to_a_topic_being_made_keep_their_order_and_delay_no_others() -> None:
    made = broker()
    first = [made.start_send(b"%d" % number, topic="New") for number in range(20)]
    other = made.start_send(b"other")
    made.system.run_until(lambda: bool(other))
    made.system.run_until(lambda: all(first))
    assert [record.body for record in made.messages("New")] == [b"%d" % n for n in range(20)]
    offsets = [int((answer[0].fields or {})["queueOffset"]) for answer in first]
    assert offsets == list(range(20))


@pytest.mark.trial(short=8, long=1000)
def test_a_send_at_its_topics_creation_follows_earlier_sends(
    seed: int,
) -> None:
    made = SimulatedBroker(seed)
    first = [made.start_send(b"%d" % number, topic="New") for number in range(3)]
    made.system.run_until(lambda: "New" in made.broker.tables.topics.value)
    later = [made.start_send(b"%d" % number, topic="New") for number in range(3, 6)]
    made.system.run_until(lambda: all(first) and all(later))
    assert [record.body for record in made.messages("New")] == [b"%d" % n for n in range(6)]


def test_sends_to_a_topic_that_cannot_be_created_are_all_refused() -> None:
    made = broker(auto_create_topic_enable=False)
    answers = [made.start_send(topic="New") for _ in range(5)]
    made.system.run_until(lambda: all(answers))
    assert {answer[0].code for answer in answers} == {ResponseCode.TOPIC_NOT_EXIST}


def test_sends_parked_over_the_limit_of_a_topic_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "PARKED_MAX", 3)
    made = broker()
    peer = FramesPeer()
    sends = peer.sends(*[send_command(b"%d" % number, topic="New") for number in range(5)])
    made.system.address("put_message").tell(sends)
    made.system.run_until(lambda: len(peer.received) == 5)
    codes = [answer.code for answer in peer.answers()]
    assert codes == [ResponseCode.SUCCESS] * 3 + [ResponseCode.SYSTEM_ERROR] * 2
    remark = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
    assert peer.answers()[4].remark == remark
    assert [record.body for record in made.messages("New")] == [b"0", b"1", b"2"]


# --- whatever comes

INTS = (0, 1, 3, -1, 4, 8, 12, 769, (1 << 31) - 1, -(1 << 31))
LONGS = (0, 1_700_000_000_000, -1, (1 << 63) - 1, -(1 << 63))
TOPICS = ("Topic", "New", "%RETRY%consumers", "%RETRY%", "%DLQ%x", "TBW102", "a|b", "-", "\ud800")
PIECES = ["WAIT\x01true", "DELAY\x01", "3", "TRAN_MSG\x01true", "KEYS\x01a b", "TAGS\x01t", "\x01"]
PIECES += ["\x02", "\ud800", "ü", "UNIQ_KEY\x01u", "\0", "CLUSTER\x01c", "9" * 30, "x" * 9000]


def any_send(random: Random) -> RemotingCommand:
    pick = random.choice
    batch = random.random() < 0.3
    body = encode_batch([BatchMessage(b"b", b"a\x01b", pick(INTS))] * random.randrange(3))
    if random.random() < 0.5:
        body = random.randbytes(random.randrange(40))
    return send_command(
        body,
        topic=pick(TOPICS),
        queue_id=pick(INTS),
        properties="\x02".join(random.choices(PIECES, k=random.randrange(5))),
        batch=batch,
        sys_flag=pick(INTS),
        flag=pick(INTS),
        born_timestamp=pick(LONGS),
        reconsume_times=pick(INTS),
        max_reconsume_times=pick((None, *INTS)),
        default_topic_queue_nums=pick(INTS),
        unit_mode=pick((True, False)),
    )


@pytest.mark.trial(short=2, long=300)
def test_no_send_makes_the_broker_fail(seed: int) -> None:
    random, made = Random(seed), SimulatedBroker(seed)
    made.make_topic()
    answers: list[RemotingCommand] = []
    for number in range(300):
        made.client.start(any_send(random), answers.append)
        if number % 30 == 0:
            made.system.advance(100)
    made.system.advance(1000)
    assert len(answers) == 300
    stored = sum(1 for answer in answers if answer.code == ResponseCode.SUCCESS)
    assert stored > 30
    assert {each.incarnation for each in addresses(made.system) if each.is_up} == {1}
    records = made.records()
    pulled = [made.messages(queue_id=queue_id) for queue_id in range(4)]
    assert any(pulled)
    made.restart_killed()
    assert made.records() == records
    assert [made.messages(queue_id=queue_id) for queue_id in range(4)] == pulled


def test_a_sender_cannot_set_the_host_flags_of_a_record() -> None:
    made = broker()
    for sys_flag in (BORN_HOST_V6, STORE_HOST_V6, -1):
        record = made.stored(made.send(sys_flag=sys_flag))
        assert record.sys_flag == sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
    body = encode_batch([BatchMessage(b"1"), BatchMessage(b"2")])
    assert made.send(body, batch=True, sys_flag=BORN_HOST_V6).code == ResponseCode.SUCCESS
    assert len(made.records()) == 5


@pytest.mark.parametrize("kind", [TRANSACTION_PREPARED, TRANSACTION_ROLLBACK])
def test_prepared_and_rolled_back_records_take_no_queue_offset(kind: int) -> None:
    made = broker()
    made.send(b"first")
    assert made.stored(made.send(b"in no queue", sys_flag=kind)).queue_offset == 0
    assert made.stored(made.send(b"second")).queue_offset == 1
    made.send(b"third", sys_flag=TRANSACTION_COMMIT)
    assert [record.body for record in made.messages()] == [b"first", b"second", b"third"]
    assert [record.queue_offset for record in made.messages()] == [0, 1, 2]


def test_a_topic_change_applies_to_the_next_send() -> None:
    made = broker()
    assert made.send(queue_id=3).code == ResponseCode.SUCCESS
    made.make_topic(queues=2)
    assert made.send(queue_id=3).code == ResponseCode.SYSTEM_ERROR
    made.make_topic(queues=8, filter_type="MULTI_TAG")
    record = made.stored(made.send(queue_id=3))
    assert (record.queue_offset, record.sys_flag) == (1, MULTI_TAGS)


def test_a_changed_queue_count_applies_to_cached_send_shapes() -> None:
    made, peer = broker(), FramesPeer()
    send = send_of(send_command(queue_id=3))
    for queues in (4, 2, 4):
        made.make_topic(queues=queues)
        made.system.address("put_message").tell(Sends(peer, [send, send], 100))
        made.system.advance(10)
    assert [answer.code for answer in peer.received] == [0, 0, 1, 1, 0, 0]


# --- delay levels that Java cannot parse


@pytest.mark.parametrize("level", [" 2", "1_0", "x", "2147483648", "9" * 5000])
def test_no_send_stores_a_delay_level_that_4_9_7_cannot_parse(
    level: str,
) -> None:
    made = broker()
    bad = f"a\x01b\x02DELAY\x01{level}"
    parts = encode_batch([BatchMessage(b"1", b"a\x01b"), BatchMessage(b"2", bad.encode())])
    plain = encode_batch([BatchMessage(b"1"), BatchMessage(b"2")])
    commands = [
        send_command(properties=bad),
        send_command(properties=f"{bad}\x02TRAN_MSG\x01true\x02PGROUP\x01p", sys_flag=4),
        send_command(plain, properties=bad, batch=True),
        send_command(parts, batch=True),
    ]
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        commands.append(replace(send_command(plain, properties=bad, batch=True), code=code))
        commands.append(replace(send_command(parts, batch=True), code=code))
    remark = f'java.lang.NumberFormatException: For input string: "{level[:255]}"'
    for command in commands:
        answer = made.ask(command)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert made.records() == []
    assert made.send(properties="DELAY\x01+2").code == ResponseCode.SUCCESS


def test_all_words_of_keys_are_stored_and_the_first_ones_indexed() -> None:
    made = SimulatedBroker(11, store_config=replace(STORE, max_index_entries=2000))
    made.make_topic()
    words = " ".join(f"{number:x}" for number in range(3000))
    text = f"UNIQ_KEY\x01u\x02KEYS\x01{words}"
    with capture_logs() as lines:
        for batch in (False, True):
            body = encode_batch([BatchMessage(b"b", text.encode())]) if batch else b"b"
            properties = "" if batch else text
            assert made.ask(send_command(body, properties=properties, batch=batch)).code == 0
    (line,) = [each for each in lines if each["event"] == "message keys left out of the index"]
    assert line["names"] == ["Topic"]
    made.system.advance(1000)
    index = made.broker.store.index
    assert index is not None
    for key, count in (("u", 2), ("0", 2), ("7f", 2), ("80", 0), ("bb7", 0)):
        assert len(index.query("Topic", key, 64, 0, 1 << 62).physical_offsets) == count, key
    assert [b" bb7" in record.properties for record in made.records()] == [True, True]
