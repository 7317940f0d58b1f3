"""Delayed messages come at their time, in order, whatever happens in between."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.delays.level_timers import own_record
from actors.dispatching.messages import WritesForbidden
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.message import MessageRecord, decode_record, encode_record
from storage.dispatching.dispatch import delay_levels_ms
from storage.errors import SyncFailed
from storage.log.commit_log import PutRecord
from storage.tables.delay_offsets import parse_delay_offsets
from tests.actors.pulling.test_cold_read import Slow
from tests.support import golden
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk

FEW = replace(STORE, message_delay_level="1s 5s 2h")
OFFSETS = "/store/config/delayOffset.json"


def delayed(made: SimulatedBroker, body: bytes, level: int, **options: Any) -> None:
    answer = made.send(body, properties=f"DELAY\x01{level}\x02TAGS\x01a", **options)
    assert answer.code == 0


def bodies(made: SimulatedBroker, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in made.messages(queue_id=queue_id)]


def saved(made: SimulatedBroker) -> dict[int, int]:
    text = made.disk.read_bytes(OFFSETS).decode()
    return parse_delay_offsets(text).offset_table


def broker(**store: Any) -> SimulatedBroker:
    made = SimulatedBroker(1, store_config=replace(FEW, **store))
    made.make_topic()
    return made


def test_a_stop_before_the_search_for_timers_is_refused_once() -> None:
    """Each refusal sent the request again, until the stack of the process ended."""
    with capture_logs() as lines:
        for seed in range(12):
            SimulatedBroker(seed, store_config=FEW).stop()
    assert [line for line in lines if line["event"] == "refusal failed"] == []


# --- on time


@pytest.mark.parametrize("level", [1, 2])
def test_a_message_is_delivered_at_most_100_ms_after_it_is_due(level: int) -> None:
    made = broker()
    for number in range(5):
        delayed(made, b"%d" % number, level)
        made.system.advance(777)
    made.system.advance(10_000)
    found = made.messages()
    assert [record.body for record in found] == [b"0", b"1", b"2", b"3", b"4"]
    waited = [record for record in made.records() if record.topic == "SCHEDULE_TOPIC_XXXX"]
    delay_ms = delay_levels_ms(FEW.message_delay_level)[level - 1]
    for before, after in zip(waited, found, strict=True):
        late_ms = after.store_timestamp - before.store_timestamp - delay_ms
        assert 0 <= late_ms <= 100


def test_a_two_hour_delay_is_measured_on_the_wall_clock() -> None:
    made = broker()
    delayed(made, b"late", 3)
    made.clock.set_wall(made.clock.now_ms() + 7_199_000)
    made.system.advance(900)
    assert bodies(made) == []
    made.system.advance(200)
    assert bodies(made) == [b"late"]


def test_delay_levels_are_independent() -> None:
    made = broker()
    delayed(made, b"5 s", 2)
    delayed(made, b"1 s", 1)
    made.system.advance(1500)
    assert bodies(made) == [b"1 s"]
    made.system.advance(4000)
    assert bodies(made) == [b"1 s", b"5 s"]


def test_a_slave_delivers_no_delayed_message() -> None:
    made = broker()
    delayed(made, b"x", 1)
    made.stop()
    made.config = replace(BROKER, broker_role="SLAVE", broker_id=1)
    made.start()
    made.system.advance(5000)
    assert [record.topic for record in made.records()] == ["SCHEDULE_TOPIC_XXXX"]


# --- what is delivered


def test_a_delivered_record_equals_that_of_the_original_broker(
    tmp_path: Path,
) -> None:
    """Compare the delivered record of the golden store with the one this broker makes."""
    manifest = golden.manifest("clean")
    root = golden.store("clean", tmp_path)
    by_queue = manifest["consumeQueues"]
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))

    def at(offset: int) -> MessageRecord:
        return decode_record(log, offset)

    originals = [at(each["commitLogOffset"]) for each in manifest["rawRecords"]]
    compared = 0
    for name, units in by_queue.items():
        if not name.startswith("SCHEDULE"):
            continue
        for _, offset, _, due in units:
            scheduled = at(offset)
            copies = [
                each
                for each in originals
                if each.body == scheduled.body
                and each.topic != scheduled.topic
                and each.properties == scheduled.properties
            ]
            if not copies:
                continue
            (wanted,) = copies
            found = delivered(scheduled, due)
            assert encode_record(replace(found, **places(wanted))) == encode_record(wanted)
            compared += 1
    assert compared == 5


def places(record: MessageRecord) -> dict[str, Any]:
    return {
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "store_timestamp": record.store_timestamp,
    }


def delivered(scheduled: MessageRecord, due: int) -> MessageRecord:
    """Return this broker's delivered record."""
    made = SimulatedBroker(1, start_ms=due - 500)
    made.broker.store.commit_log.store_host = scheduled.store_host
    log, queues = made.broker.store.commit_log, made.broker.store.consume_queues
    size = len(encode_record(scheduled))
    placed = log.append(
        [
            PutRecord(
                scheduled.topic.encode(),
                scheduled.queue_id,
                0,
                scheduled.flag,
                scheduled.sys_flag,
                scheduled.born_timestamp,
                scheduled.born_host,
                scheduled.reconsume_times,
                0,
                scheduled.body,
                scheduled.properties,
                scheduled.body_crc,
            )
        ],
        due - 1000,
    )
    queue = queues.get_or_create(scheduled.topic, scheduled.queue_id)
    assert queue.append(0, placed[0][0], size, due)
    made.system.advance(2000)
    record = made.records()[-1]
    assert record.topic != scheduled.topic
    made.stop()
    return record


def test_the_delivered_message_is_found_by_its_tag_and_its_key() -> None:
    made = broker()
    text = "KEYS\x01k\x02UNIQ_KEY\x01u\x02DELAY\x011\x02TAGS\x01a"
    assert made.send(b"x", properties=text, queue_id=2).code == 0
    made.system.advance(1500)
    assert made.pull(queue_id=2, expression="a").code == 0
    index = made.broker.store.index
    assert index is not None
    found = index.query("Topic", "k", 5, 0, 1 << 62).physical_offsets
    (record,) = made.messages(queue_id=2)
    assert list(found) == [record.physical_offset]
    assert b"REAL_TOPIC\x01Topic\x02REAL_QID\x012" in record.properties
    assert b"DELAY\x011" in record.properties


# --- where a level goes on


def test_the_offsets_are_saved_on_the_interval_and_at_the_stop() -> None:
    made = broker()
    delayed(made, b"1", 1)
    made.system.advance(12_000)
    assert saved(made) == {1: 1}
    delayed(made, b"2", 1)
    delayed(made, b"3", 2)
    made.system.advance(5500)
    made.stop()
    assert saved(made) == {1: 2, 2: 1}
    made.start()
    answer = made.ask(RemotingCommand(RequestCode.GET_ALL_DELAY_OFFSET))
    assert (answer.body, answer.fields) == (b'{"offsetTable":{1:2,2:1}}', None)
    made.system.advance(3000)
    assert bodies(made) == [b"1", b"2", b"3"]


def write_offsets(made: SimulatedBroker, text: bytes) -> None:
    file = made.disk.open(OFFSETS, create=True)
    file.set_size(len(text))
    file.pwrite(text, 0)
    file.close()


def test_an_offset_out_of_range_is_corrected_and_logged_once() -> None:
    made = broker()
    for number in range(3):
        delayed(made, b"%d" % number, 1)
    made.stop()
    write_offsets(made, b'{"offsetTable":{1:99}}')
    with capture_logs() as lines:
        made.start()
        made.system.advance(3000)
    outside = [line for line in lines if line["event"] == "delay offset outside its queue"]
    assert [(line["offset"], line["moved_to"]) for line in outside] == [(99, 3)]
    assert bodies(made) == []
    delayed(made, b"next", 1)
    made.system.advance(3000)
    assert bodies(made) == [b"next"]


def test_a_delivery_counts_only_after_its_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = broker(flush_interval_ms=60_000, flush_thorough_interval_ms=60_000)
    delayed(made, b"1", 1)
    made.system.advance(5_000)
    assert bodies(made) == [b"1"]

    def broken(_: int) -> None:
        raise SyncFailed("the disk is broken")

    monkeypatch.setattr(made.broker.store.commit_log, "sync", broken)
    made.system.advance(60_000)
    assert not made.disk.exists(OFFSETS)
    made.restart_killed()
    made.system.advance(12_000)
    assert bodies(made) == [b"1", b"1"]
    assert saved(made) == {1: 1}


def test_a_stop_between_saves_causes_no_second_delivery() -> None:
    made = broker(flush_interval_ms=600_000, flush_thorough_interval_ms=600_000)
    delayed(made, b"1", 1)
    made.system.advance(1500)
    made.stop()
    assert saved(made) == {1: 1}
    made.start()
    made.system.advance(3000)
    assert bodies(made) == [b"1"]


# --- what goes wrong


def test_a_failed_delivery_is_retried_and_never_skipped() -> None:
    made = broker()
    for number in range(3):
        delayed(made, b"%d" % number, 1)
    forbid = made.system.address("put_message").tell
    forbid(WritesForbidden("full", "test"))
    with capture_logs() as lines:
        made.system.advance(5000)
        assert bodies(made) == []
        forbid(WritesForbidden(None, "test"))
        made.system.advance(1000)
    events = Counter(line["event"] for line in lines)
    assert events["delayed delivery failed"] == 1
    assert events["delayed delivery resumed"] == 1
    assert bodies(made) == [b"0", b"1", b"2"]


def flip(made: SimulatedBroker, path: str, position: int) -> None:
    assert isinstance(made.disk, FakeDisk)
    made.disk.flip_bit(path, position, 3)


def test_a_damaged_message_is_skipped_and_logged_and_the_rest_delivered() -> None:
    made = broker()
    for number in range(4):
        delayed(made, bytes([number]) * 50, 1)
    middle = [each for each in made.records() if each.topic.startswith("SCHEDULE")][1]
    made.stop()
    flip(made, "/store/commitlog/" + "0" * 20, middle.physical_offset + 100)
    with capture_logs() as lines:
        made.start()
        made.system.advance(20_000)
    assert [body[0] for body in bodies(made)] == [0, 2, 3]
    skipped = [line for line in lines if line["event"] == "delayed messages skipped"]
    assert [(line["count"], line["first"]) for line in skipped] == [(1, 1)]


@pytest.mark.parametrize("position", [6, 10, 13])
def test_a_flipped_bit_in_a_unit_loses_no_message(position: int) -> None:
    """In the offset, in the size, in the due time: the scrubber makes it right meanwhile."""
    made = broker()
    for number in range(4):
        delayed(made, bytes([number]) * 50, 2)
    made.stop()
    unit = 20 + position
    flip(made, "/store/consumequeue/SCHEDULE_TOPIC_XXXX/1/" + "0" * 20, unit)
    made.start()
    made.system.advance(30_000)
    assert sorted(body[0] for body in bodies(made)) == [0, 1, 2, 3]


def test_a_message_without_a_real_topic_is_skipped() -> None:
    made = broker()
    queues, log = made.broker.store.consume_queues, made.broker.store.commit_log
    text = b"DELAY\x011\x02REAL_TOPIC\x01Topic\x02REAL_QID\x01x"
    record = PutRecord(b"SCHEDULE_TOPIC_XXXX", 0, 0, 0, 0, 0, bytes(8), 0, 0, b"", text, 0)
    ((offset, size),) = log.append([record], made.clock.now_ms())
    queues.get_or_create("SCHEDULE_TOPIC_XXXX", 0).append(0, offset, size, 1)
    with capture_logs() as lines:
        made.system.advance(2000)
    (line,) = [line for line in lines if line["event"] == "delayed messages skipped"]
    assert line["reason"] == "it names no real topic or queue"


def test_a_restarted_schedule_continues_at_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    made = broker()
    delayed(made, b"1", 1)
    made.system.advance(1500)
    place = "actors.delays.schedule.own_record"

    def broken(message: Any) -> Any:
        monkeypatch.setattr(place, own_record)
        raise ValueError("broken")

    monkeypatch.setattr(place, broken)
    delayed(made, b"2", 1)
    made.system.advance(3000)
    assert bodies(made) == [b"1", b"2"]


def test_cold_queue_and_log_pages_are_read_on_a_thread() -> None:
    made = broker()
    for number in range(10):
        delayed(made, b"%d" % number * 100, 2)
    made.stop()
    slow = Slow()
    made.instead = {"cold_read": lambda _: slow}
    assert isinstance(made.disk, FakeDisk)
    made.disk.forget_cache()
    made.start()
    made.system.advance(10_000)
    made.disk.forget_cache("/store/commitlog")  # which the start has read
    for read in ("consumequeue", "commitlog"):
        parts = [part for message in slow.taken for part in message.parts]
        assert parts and all(f"/{read}/" in part.path for part in parts)
        slow.let_go(made)
        made.system.advance(10)
    assert len(bodies(made)) == 10
