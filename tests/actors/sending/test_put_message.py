"""Stored records of sends, and the answers to their producers."""

import errno
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.sending import put_message
from actors.statistics.counts import PUT_BOUNDS_MS
from protocol.batch import DECODED_MAX, BatchMessage, encode_batch
from protocol.codes import (
    BORN_HOST_V6,
    COMPRESSED,
    STORE_HOST_V6,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from protocol.frame import RemotingCommand
from protocol.host import pack_host
from protocol.message import body_crc
from protocol.message_id import parse_message_id
from protocol.properties import parse
from protocol.tags import java_hash_code
from storage.queues.consume_queue import UNIT
from tests.support.brokers import BROKER, PORTS, STORE, FramesPeer, SimulatedBroker, send_command
from troupemq.testing.fake_disk import FakeDisk

START_MS = 1_700_000_000_000
CONSTANT = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def broker(**settings: Any) -> SimulatedBroker:
    made = SimulatedBroker(5, config=replace(BROKER, **settings))
    made.make_topic()
    return made


def unit(made: SimulatedBroker, topic: str, queue_id: int, offset: int) -> tuple[int, int, int]:
    """Physical offset, size and tags code that the consume queue has."""
    made.system.drain()
    queue = made.broker.store.consume_queues.get(topic, queue_id)
    assert queue is not None
    found: list[tuple[int, int, int]] = list(UNIT.iter_unpack(queue.units(offset, 1)))
    return found[0]


def test_a_record_has_the_sent_values_and_those_of_the_broker() -> None:
    made = broker()
    answer = made.send(
        b"a body",
        queue_id=2,
        properties="KEYS\x01k1 k2\x02WAIT\x01true\x02TAGS\x01TagA",
        sys_flag=COMPRESSED,
        flag=7,
        reconsume_times=3,
        born_timestamp=1_600_000_000_123,
    )
    record = made.stored(answer)
    assert record.topic == "Topic"
    assert (record.queue_id, record.queue_offset, record.physical_offset) == (2, 0, 0)
    assert (record.flag, record.sys_flag, record.reconsume_times) == (7, COMPRESSED, 3)
    assert (record.born_timestamp, record.store_timestamp) == (1_600_000_000_123, START_MS)
    assert record.born_host == pack_host("127.0.0.1", 1)
    assert record.store_host == pack_host("127.0.0.1", PORTS.main)
    assert (record.body, record.body_crc) == (b"a body", body_crc(b"a body"))
    wanted = {"KEYS": "k1 k2", "TAGS": "TagA", "CLUSTER": "DefaultCluster"}
    assert parse(record.properties) == wanted
    assert record.prepared_transaction_offset == 0
    assert unit(made, "Topic", 2, 0) == (0, record.record_bytes, java_hash_code("TagA"))


def test_the_answer_has_message_id_queue_and_offset() -> None:
    made = broker()
    made.send(queue_id=1)
    answer = made.send(queue_id=1)
    fields = answer.fields or {}
    assert fields == {
        "msgId": fields["msgId"],
        "queueId": "1",
        "queueOffset": "1",
        **CONSTANT,
    }
    host, offset = parse_message_id(fields["msgId"])
    assert host == pack_host("127.0.0.1", PORTS.main)
    assert offset == made.records()[1].physical_offset
    assert (answer.remark, answer.body) == (None, None)


@pytest.mark.parametrize("kind", SerializeType, ids=lambda kind: kind.name)
def test_an_answer_has_the_opaque_and_the_header_form_of_its_request(kind: SerializeType) -> None:
    made = broker()
    command = send_command()
    command.serialize_type = kind
    answer = made.ask(command)
    assert (answer.serialize_type, answer.opaque) == (kind, command.opaque)
    bad = send_command(topic="bad topic")
    bad.serialize_type = kind
    assert made.ask(bad).serialize_type == kind


def test_each_queue_counts_its_own_offsets() -> None:
    made = broker()
    sent = [(topic, queue) for _ in range(3) for topic in ("Topic", "Other") for queue in (0, 3)]
    answers = [made.send(topic=topic, queue_id=queue) for topic, queue in sent]
    offsets = [int((answer.fields or {})["queueOffset"]) for answer in answers]
    assert offsets == [0] * 4 + [1] * 4 + [2] * 4
    made.system.drain()
    assert made.offset(RequestCode.GET_MAX_OFFSET, "Other", 3) == 3


def test_a_one_way_send_is_stored_and_not_answered_even_when_it_fails() -> None:
    made, peer = broker(), FramesPeer()
    sends = peer.sends(
        send_command(b"one", oneway=True), send_command(topic="bad topic", oneway=True)
    )
    made.system.address("put_message").tell(sends)
    made.system.advance(100)
    assert [record.body for record in made.messages()] == [b"one"]
    assert peer.received == []
    assert peer.released_bytes == 100


def test_all_answers_to_one_read_travel_together() -> None:
    made, peer = broker(), FramesPeer()
    sends = peer.sends(*[send_command(b"%d" % number) for number in range(50)])
    made.system.address("put_message").tell(sends)
    made.system.advance(100)
    assert peer.writes == [50]
    assert peer.released_bytes == 100
    offsets = [int((answer.fields or {})["queueOffset"]) for answer in peer.answers()]
    assert offsets == list(range(50))


def test_more_than_a_write_s_worth_is_written_before_the_batch_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(put_message, "COMMIT_BYTES", 1000)
    made = broker()
    answers = [made.start_send(b"x" * 600) for _ in range(10)]
    made.system.run_until(lambda: all(answers))
    offsets = [int((answer[0].fields or {})["queueOffset"]) for answer in answers]
    assert offsets == list(range(10))


# --- hosts and times


def test_a_v6_client_s_address_is_stored_with_its_flag() -> None:
    made = broker()
    made.client = made.new_client(port=700, host="2001:db8::1")
    record = made.stored(made.send())
    assert record.sys_flag == BORN_HOST_V6
    assert record.born_host == pack_host("2001:db8::1", 700)
    body = encode_batch([BatchMessage(b"1"), BatchMessage(b"2")])
    made.send(body, batch=True)
    assert [each.sys_flag for each in made.messages()] == [BORN_HOST_V6] * 3


def test_a_v6_broker_s_address_is_stored_with_its_flag() -> None:
    made = broker(broker_ip1="::1")
    answer = made.send()
    assert len((answer.fields or {})["msgId"]) == 56
    record = made.stored(answer)
    assert (record.sys_flag, record.store_host) == (STORE_HOST_V6, pack_host("::1", PORTS.main))


def test_the_store_time_does_not_go_back_when_the_clock_does() -> None:
    made = broker()
    made.system.advance(5000)
    first = made.stored(made.send())
    made.clock.set_wall(START_MS - 60_000)
    second = made.stored(made.send())
    assert second.store_timestamp == first.store_timestamp == START_MS + 5000
    made.clock.set_wall(START_MS + 9000)
    assert made.stored(made.send()).store_timestamp == START_MS + 9000


# --- delayed and half messages


def test_a_delayed_message_waits_in_the_schedule_topic_with_its_due_time_as_tags_code() -> None:
    made = broker()
    made.send(queue_id=3, properties="DELAY\x012\x02WAIT\x01true")
    made.system.advance(1000)
    answer = made.send(queue_id=3, properties="DELAY\x012\x02WAIT\x01true\x02TAGS\x01t")
    assert (answer.fields or {})["queueId"] == "3"
    assert (answer.fields or {})["queueOffset"] == "1"
    record = made.stored(answer)
    assert (record.topic, record.queue_id, record.queue_offset) == ("SCHEDULE_TOPIC_XXXX", 1, 1)
    assert parse(record.properties)["REAL_TOPIC"] == "Topic"
    due_ms = START_MS + 1000 + 5000
    assert unit(made, "SCHEDULE_TOPIC_XXXX", 1, 1)[2] == due_ms
    assert made.messages(queue_id=3) == []


def test_a_half_message_is_stored_in_the_internal_topic() -> None:
    made = broker()
    sent = "TRAN_MSG\x01true\x02PGROUP\x01p\x02TAGS\x01t"
    answer = made.send(queue_id=2, sys_flag=4, properties=sent)
    assert (answer.fields or {})["queueId"] == "2"
    record = made.stored(answer)
    assert (record.topic, record.queue_id) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert record.sys_flag == 0
    assert parse(record.properties)["REAL_QID"] == "2"
    assert unit(made, "RMQ_SYS_TRANS_HALF_TOPIC", 0, 0)[2] == java_hash_code("t")
    assert made.messages(queue_id=2) == []


# --- batches


def test_a_batch_is_stored_as_separate_records_with_one_answer() -> None:
    made = broker()
    made.send(queue_id=1)
    parts = [
        BatchMessage(b"one", b"TAGS\x01a\x02UNIQ_KEY\x01u1", 1),
        BatchMessage(b"", b"", 2),
        BatchMessage(b"three", b"TAGS\x01c\x02", 3),
    ]
    answer = made.send(encode_batch(parts), batch=True, queue_id=1, properties="WAIT\x01true")
    fields = answer.fields or {}
    assert (fields["queueId"], fields["queueOffset"]) == ("1", "1")
    assert CONSTANT.items() <= fields.items()
    records = made.messages(queue_id=1)[1:]
    offsets = [int(identifier[-16:], 16) for identifier in fields["msgId"].split(",")]
    assert [record.physical_offset for record in records] == offsets
    assert [record.body for record in records] == [b"one", b"", b"three"]
    assert [record.flag for record in records] == [1, 2, 3]
    assert [record.queue_offset for record in records] == [1, 2, 3]
    assert [record.body_crc for record in records] == [body_crc(part.body) for part in parts]
    shared = b"WAIT\x01true\x02CLUSTER\x01DefaultCluster"
    assert records[0].properties == b"TAGS\x01a\x02UNIQ_KEY\x01u1\x02" + shared
    assert records[1].properties == shared
    assert records[2].properties == b"TAGS\x01c\x02" + shared
    assert unit(made, "Topic", 1, 3)[2] == java_hash_code("c")


def test_a_batch_of_one_is_answered_like_a_single_send() -> None:
    made = broker()
    answer = made.send(encode_batch([BatchMessage(b"only", b"a\x01b", 9)]), batch=True)
    record = made.stored(answer)
    assert (record.body, record.flag) == (b"only", 9)
    assert record.properties == b"a\x01b\x02CLUSTER\x01DefaultCluster"
    assert list(answer.fields or {}) == list(made.send(b"alone").fields or {})


def test_a_single_send_with_the_batch_flag_is_a_batch() -> None:
    made = broker()
    command = send_command(encode_batch([BatchMessage(b"1"), BatchMessage(b"2")]), batch=True)
    command.code = RequestCode.SEND_MESSAGE_V2
    assert "," in (made.ask(command).fields or {})["msgId"]


ILLEGAL_BATCHES: dict[str, dict[str, Any]] = {
    "delayed": {"properties": "DELAY\x011"},
    "prepared": {"sys_flag": 4},
    "committed": {"sys_flag": 8},
    "rolled back": {"sys_flag": 12},
}


@pytest.mark.parametrize("options", ILLEGAL_BATCHES.values(), ids=ILLEGAL_BATCHES.keys())
def test_a_batch_is_neither_delayed_nor_transactional(options: dict[str, Any]) -> None:
    made = broker()
    answer = made.send(encode_batch([BatchMessage(b"b")]), batch=True, **options)
    assert (answer.code, answer.fields) == (ResponseCode.MESSAGE_ILLEGAL, CONSTANT)
    assert made.records() == []


def test_an_invalid_batch_is_answered_with_4_9_7s_exception() -> None:
    made = broker()
    good = encode_batch([BatchMessage(b"first"), BatchMessage(b"second")])
    for body in (b"broken", good[:-1], good[:30], good + b"\0"):
        answer = made.send(body, batch=True)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("java.nio.BufferUnderflowException")
        assert answer.fields is None
    assert made.send(b"", batch=True).code == ResponseCode.SYSTEM_ERROR
    assert made.records() == []
    assert (made.send().fields or {})["queueOffset"] == "0"


def test_batch_of_too_many_small_messages_is_refused_before_they_are_decoded() -> None:
    """One body of 3.3 MB with 150,000 empty messages held the loop up for 0.46 s."""
    store = replace(STORE, commit_log_file_bytes=4 << 20, max_message_bytes=4 << 20)
    made = SimulatedBroker(5, store_config=store)
    made.make_topic()
    one = encode_batch([BatchMessage(b"")])
    for count in (DECODED_MAX + 1, 150_000):
        answer = made.send(one * count, batch=True)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert str(DECODED_MAX) in (answer.remark or "")
    assert made.send(one * 11_700, batch=True).code == ResponseCode.SUCCESS


def test_a_batch_longer_than_a_body_may_be_is_refused() -> None:
    made = SimulatedBroker(5, store_config=replace(STORE, max_message_bytes=1000))
    made.make_topic()
    parts = [BatchMessage(b"x" * 300)] * 4
    assert made.send(encode_batch(parts), batch=True).code == ResponseCode.MESSAGE_ILLEGAL
    assert made.send(encode_batch(parts[:3]), batch=True).code == ResponseCode.SUCCESS


def test_batch_records_obey_the_property_limit() -> None:
    made = broker()
    shared = len("CLUSTER\x01DefaultCluster") + 1
    own = b"a\x01" + b"p" * (32_767 - shared - 2)
    fits = encode_batch([BatchMessage(b"b", own)])
    assert made.send(fits, batch=True).code == ResponseCode.SUCCESS
    over = encode_batch([BatchMessage(b"b", own + b"p")])
    assert made.send(over, batch=True).code == ResponseCode.MESSAGE_ILLEGAL


def test_a_batch_that_does_not_fit_moves_to_the_next_file_as_a_whole() -> None:
    made = broker()
    file_bytes = STORE.commit_log_file_bytes
    while file_bytes - made.broker.store.commit_log.end_offset > 9000:
        made.send(b"x" * 4000)
    parts = [BatchMessage(b"y" * 3000)] * 4
    answer = made.send(encode_batch(parts), batch=True, queue_id=1)
    assert answer.code == ResponseCode.SUCCESS
    records = made.messages(queue_id=1)
    assert [record.queue_offset for record in records] == [0, 1, 2, 3]
    assert records[0].physical_offset == file_bytes


# --- counters


def test_puts_bytes_failures_and_the_longest_put_are_counted() -> None:
    made = broker()
    for _ in range(3):
        made.send(topic="Topic")
    made.send(encode_batch([BatchMessage(b"1"), BatchMessage(b"2")]), batch=True, topic="Other")
    made.send(topic="bad topic")
    stats = made.broker.put_stats
    sizes = [record.record_bytes for record in made.records()]
    assert (stats.put_count, stats.put_bytes, stats.failed_count) == (5, sum(sizes), 1)


def test_a_put_of_over_half_a_second_logs_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    made = broker()
    log = made.broker.store.commit_log
    original = log.append

    def slow(*arguments: Any) -> Any:
        made.clock.wind_to(made.clock.monotonic_ms() + 700)
        return original(*arguments)

    monkeypatch.setattr(log, "append", slow)
    with capture_logs() as lines:
        assert made.send().code == ResponseCode.SUCCESS
    monkeypatch.undo()
    assert [line["ms"] for line in lines if line["event"] == "slow put"] == [700]
    stats = made.broker.put_stats
    assert (stats.longest_put_ms, stats.total_ms) == (700, 700)
    assert stats.durations[PUT_BOUNDS_MS.index(1000)] == 1
    with capture_logs() as lines:
        made.send()
    assert not [line for line in lines if line["event"] == "slow put"]


def test_a_go_clients_send_is_stored_alike() -> None:
    made = broker()
    header = send_command(b"go")
    names = {"a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums"}
    names |= {"e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag"}
    names |= {"i": "properties", "j": "reconsumeTimes", "k": "unitMode", "m": "batch"}
    fields = {names[short]: value for short, value in (header.fields or {}).items()}
    record = made.stored(made.ask(RemotingCommand(RequestCode.SEND_MESSAGE, fields, b"go")))
    assert (record.topic, record.body) == ("Topic", b"go")


def test_disk_that_fails_for_long_is_logged_at_its_begin_and_end() -> None:
    """A line for each refused batch of sends drove all other lines out of the log."""
    made = broker()
    disk = made.disk
    assert isinstance(disk, FakeDisk)
    broken = OSError(errno.EIO, "Input/output error")
    disk.fail_next("pwrite", broken, times=50, below=STORE.commit_log_dir)
    with capture_logs() as lines:
        codes = {made.send().code for _ in range(50)}
        assert made.send().code == ResponseCode.SUCCESS
    assert codes == {ResponseCode.SERVICE_NOT_AVAILABLE}
    events = [line["event"] for line in lines if line["event"].startswith("append")]
    assert events == ["append failed", "append succeeded again"]
