"""Long batches are stored in pieces, so that other clients' sends do not wait for a whole one."""

import errno
from dataclasses import replace

import pytest

from actors.sending import batches
from protocol.batch import BatchMessage, encode_batch
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from tests.support.brokers import STORE, FramesPeer, SimulatedBroker, send_command
from troupemq.testing.fake_disk import FakeDisk

LARGE = replace(
    STORE,
    commit_log_file_bytes=4 << 20,
    consume_queue_file_bytes=60_000,
    max_hash_slots=10_000,
    max_index_entries=100_000,
    max_message_bytes=4 << 20,
)


def broker(seed: int = 5, **changed: object) -> SimulatedBroker:
    made = SimulatedBroker(seed, store_config=replace(LARGE, **changed))  # type: ignore[arg-type]
    made.make_topic()
    return made


def batch(count: int, words: int = 0, last: bytes = b"") -> bytes:
    """Body of a batch of numbered messages."""
    keys = b" ".join(b"w%d" % number for number in range(words))
    parts = [
        BatchMessage(b"%d" % number, b"UNIQ_KEY\x01%032d\x02KEYS\x01" % number + keys)
        for number in range(count)
    ]
    return encode_batch([*parts, BatchMessage(b"last", last)] if last else parts)


def put_steps(made: SimulatedBroker, answers: list[RemotingCommand]) -> list[int]:
    """Run until all is answered; return the records that each step has added to the log."""
    added, log = [], made.broker.store.commit_log
    before = log.end_offset
    while not answers:
        assert made.system.loop.step()
        if log.end_offset > before:
            added.append(log.end_offset - before)
            before = log.end_offset
    return added


@pytest.mark.parametrize("seed", range(3))
def test_sends_of_others_are_answered_between_the_pieces_of_a_long_batch(seed: int) -> None:
    """A batch of 41,000 messages with 16 keys each kept the loop from others for 1.2 s."""
    made = broker(seed)
    long = made.start_send(batch(3000, words=3), batch=True)
    others: list[list[RemotingCommand]] = []
    while not long:
        if not others or others[-1]:
            others.append(made.start_send(b"other"))
        assert made.system.loop.step()
    assert sum(map(bool, others)) > 5
    assert long[0].code == ResponseCode.SUCCESS
    made.system.drain()
    bodies = [record.body for record in made.messages()]
    assert [body for body in bodies if body != b"other"] == [b"%d" % n for n in range(3000)]
    assert bodies.index(b"0") < bodies.index(b"other", bodies.index(b"0"))


def test_no_turn_appends_more_than_a_piece() -> None:
    made = broker()
    body = batch(3000, words=7)
    added = put_steps(made, made.start_send(body, batch=True))
    record_bytes = sum(added) // 3000
    assert max(added) <= (batches.PIECE_COST // 9 + 1) * (record_bytes + 4)
    assert len(added) > 12


def test_the_answer_to_a_long_batch_names_every_message_and_its_first_queue_offset() -> None:
    made = broker()
    made.send()
    answer = made.send(batch(3000), batch=True)
    fields = answer.fields or {}
    offsets = [int(each[-16:], 16) for each in fields["msgId"].split(",")]
    read = made.broker.store.commit_log.read_record
    records = [record for each in offsets if (record := read(each))]
    assert [record.body for record in records] == [b"%d" % number for number in range(3000)]
    assert fields["queueOffset"] == "1"


def test_one_bad_message_refuses_a_long_batch_as_a_whole() -> None:
    made = broker()
    body = batch(3000, last=b"a\x01" + b"p" * 32_760)
    assert made.send(body, batch=True).code == ResponseCode.MESSAGE_ILLEGAL
    cut = batch(3000)[:-1]
    assert made.send(cut, batch=True).code == ResponseCode.SYSTEM_ERROR
    assert made.records() == []
    assert (made.send().fields or {})["queueOffset"] == "0"


def test_a_disk_that_fails_between_two_pieces_refuses_the_batch_once() -> None:
    made = broker()
    disk = made.disk
    assert isinstance(disk, FakeDisk)
    answers = made.start_send(batch(5000), batch=True)
    while not made.records():
        assert made.system.loop.step()
    disk.fail_next("pwrite", OSError(errno.EIO, "Input/output error"))
    made.system.drain()
    assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert 0 < len(made.records()) < 5000
    assert made.broker.put_stats.failed_count == 1


def test_a_long_batch_is_stored_as_a_whole_before_a_stop() -> None:
    made = broker()
    answers = made.start_send(batch(5000), batch=True)
    while not made.records():
        assert made.system.loop.step()
    made.stop()
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS]
    assert made.broker.put_stats.put_count == 5000


def test_short_batches_beyond_the_cost_of_a_turn_wait_for_the_next() -> None:
    made = broker()
    peer = FramesPeer()
    body = batch(60, words=9)
    assert len(body) < batches.SHORT_BYTES
    sends = peer.sends(*[send_command(body, batch=True, queue_id=n % 4) for n in range(40)])
    made.system.address("put_message").tell(sends)
    added = put_steps(made, peer.received)
    assert len(added) == 1
    made.system.drain()
    assert [answer.code for answer in peer.answers()] == [ResponseCode.SUCCESS] * 40
    assert len(made.records()) == 2400 and sends.owed == 0
    assert sum(added) < 1200 * 300


def test_long_batches_of_one_connection_delay_those_of_another_by_one_at_a_time() -> None:
    made, crowd, other = broker(), FramesPeer(), FramesPeer("192.0.2.8")
    many = crowd.sends(*[send_command(batch(2000), batch=True) for _ in range(6)])
    made.system.address("put_message").tell(many)
    while not made.records():
        assert made.system.loop.step()
    made.system.address("put_message").tell(other.sends(send_command(batch(500), batch=True)))
    while not other.received:
        assert made.system.loop.step()
    assert len(crowd.received) <= 2
    made.system.drain()
    assert [answer.code for answer in crowd.answers()] == [ResponseCode.SUCCESS] * 6
