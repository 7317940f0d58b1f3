"""Messages by key and by offset: the answers of the original, and only whole messages."""

import pytest
from structlog.testing import capture_logs

from actors.dispatching.messages import IndexWritten, WriteOutIndex
from actors.network.messages import Request
from actors.pulling import query_message
from protocol.codes import RequestCode, ResponseCode, SerializeType
from protocol.frame import RemotingCommand
from protocol.headers.client import UNIQUE_KEY_QUERY, QueryMessageHeader, ViewMessageHeader
from protocol.message import decode_records
from tests.support.brokers import SimulatedBroker
from tests.support.peers import RecordingPeer, Told

FOREVER = 1 << 62


@pytest.fixture
def made() -> SimulatedBroker:
    return SimulatedBroker(1)


def query(
    made: SimulatedBroker,
    key: str,
    *,
    topic: str = "Topic",
    count: int = 64,
    begin_ms: int = 0,
    end_ms: int = FOREVER,
    unique: str | None = None,
    serialize_type: int = SerializeType.JSON,
) -> RemotingCommand:
    made.system.drain()  # an answer may be there before its message is dispatched
    fields = QueryMessageHeader(topic, key, count, begin_ms, end_ms).encode()
    if unique is not None:
        fields[UNIQUE_KEY_QUERY] = unique
    return made.ask(
        RemotingCommand(RequestCode.QUERY_MESSAGE, fields, serialize_type=serialize_type)
    )


def view(
    made: SimulatedBroker, offset: int, serialize_type: int = SerializeType.JSON
) -> RemotingCommand:
    fields = ViewMessageHeader(offset).encode()
    return made.ask(
        RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, fields, serialize_type=serialize_type)
    )


def bodies(answer: RemotingCommand) -> list[bytes]:
    assert answer.code == ResponseCode.SUCCESS, answer
    return [record.body for record in decode_records(bytes(answer.body or b""))]


def offset_of(answer: RemotingCommand) -> int:
    return int((answer.fields or {})["msgId"][-16:], 16)


def test_a_message_is_found_by_its_keys_at_once_and_oldest_first(made: SimulatedBroker) -> None:
    for number in range(5):
        made.send(b"%d" % number, properties=f"KEYS\x01all k{number}\x02UNIQ_KEY\x01U{number}")
    assert bodies(query(made, "all")) == [b"%d" % number for number in range(5)]
    assert bodies(query(made, "k3")) == bodies(query(made, "U3")) == [b"3"]
    assert bodies(query(made, "all", count=2)) == [b"3", b"4"]


def test_a_message_found_by_two_keys_is_returned_once(made: SimulatedBroker) -> None:
    made.send(b"body", properties="KEYS\x01k k")
    assert bodies(query(made, "k")) == [b"body"]


def test_the_answer_reports_the_progress_of_the_index(made: SimulatedBroker) -> None:
    made.send(b"first", properties="KEYS\x01k")
    made.system.advance(5000)
    last = made.send(b"last", properties="KEYS\x01other")
    answer = query(made, "k")
    assert answer.fields == {
        "indexLastUpdateTimestamp": str(made.stored(last).store_timestamp),
        "indexLastUpdatePhyoffset": str(offset_of(last)),
    }
    assert answer.remark is None


def test_missing_keys_and_topics_are_not_found(made: SimulatedBroker) -> None:
    made.send(b"body", properties="KEYS\x01k")
    for answer in (query(made, "other"), query(made, "k", topic="Another")):
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.remark == "can not find message, maybe time range not correct"
        assert answer.fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


def test_a_time_range_includes_its_ends(made: SimulatedBroker) -> None:
    times = []
    for number in range(6):
        times.append(made.stored(made.send(b"%d" % number, properties="KEYS\x01k")).store_timestamp)
        made.system.advance(10_000)
    answer = query(made, "k", begin_ms=times[2], end_ms=times[4])
    assert bodies(answer) == [b"2", b"3", b"4"]
    assert query(made, "k", end_ms=times[0] - 1000).code == ResponseCode.QUERY_NOT_FOUND


def test_a_query_returns_at_most_the_configured_number(made: SimulatedBroker) -> None:
    for number in range(70):
        made.send(b"%d" % number, properties="KEYS\x01k")
    assert len(bodies(query(made, "k", count=1000))) == 64
    assert len(bodies(query(made, "k", count=5, unique="true"))) == 32
    assert len(bodies(query(made, "k", count=5, unique="false"))) == 5


def test_a_message_is_found_by_its_offset(made: SimulatedBroker) -> None:
    sent = made.send(b"body", properties="KEYS\x01k")
    answer = view(made, offset_of(sent))
    assert bodies(answer) == [b"body"]
    assert (answer.fields, answer.remark) == (None, None)


@pytest.mark.parametrize("offset", [-1, 1, 91, 10**6, 1 << 62])
def test_an_offset_inside_a_message_is_not_found(made: SimulatedBroker, offset: int) -> None:
    made.send(b"body" * 100)
    answer = view(made, offset)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"can not find message by the offset, {offset}"
    assert answer.fields is None


def test_query_results_have_the_servers_header_form(made: SimulatedBroker) -> None:
    sent = made.send(b"body", properties="KEYS\x01k")
    binary = SerializeType.ROCKETMQ
    assert query(made, "k", serialize_type=binary).serialize_type == SerializeType.JSON
    assert query(made, "no", serialize_type=binary).serialize_type == binary
    assert view(made, offset_of(sent), binary).serialize_type == SerializeType.JSON
    assert view(made, 10**6, binary).serialize_type == binary


def test_a_missing_field_is_answered_as_a_null_pointer_exception(made: SimulatedBroker) -> None:
    answer = made.ask(RemotingCommand(RequestCode.QUERY_MESSAGE, {"topic": "Topic", "key": "k"}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("java.lang.NullPointerException")


def test_a_damaged_message_is_omitted(made: SimulatedBroker) -> None:
    sent = [made.send(b"body %d" % n, properties="KEYS\x01k") for n in range(4)]
    made.system.advance(300)
    log, damage = made.broker.store.commit_log, made.broker.store.damage
    file = log.queue.files[0]
    file.write(b"X", offset_of(sent[1]) + 88)  # in its body
    damage.add(offset_of(sent[2]), offset_of(sent[3]), "as asked")
    assert bodies(query(made, "k")) == [b"body 0", b"body 3"]
    for number in (1, 2):
        assert view(made, offset_of(sent[number])).code == ResponseCode.SYSTEM_ERROR


def test_messages_that_are_deleted_are_not_found(made: SimulatedBroker) -> None:
    sent = made.send(b"first", properties="KEYS\x01k")
    while len(made.broker.store.commit_log.queue.files) < 3:
        made.send(bytes(8000), properties="KEYS\x01k")
    log = made.broker.store.commit_log
    log.queue.drop_below(log.queue.files[1].first_offset)
    assert view(made, offset_of(sent)).code == ResponseCode.SYSTEM_ERROR
    assert b"first" not in bodies(query(made, "k"))


def test_an_answer_never_gets_longer_than_a_frame(
    made: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.pulling.query_message.BODY_BYTES_MAX", 25_000)
    for number in range(4):
        made.send(b"%d" % number * 10_000, properties="KEYS\x01k")
    assert [body[:1] for body in bodies(query(made, "k"))] == [b"2", b"3"]


def test_a_query_is_answered_although_reput_fails() -> None:
    told, peer = Told("query_message"), RecordingPeer()
    request = Request(RemotingCommand(RequestCode.QUERY_MESSAGE), peer)
    WriteOutIndex(request, told.address).on_undelivered("it has died")
    (message,) = told.take()
    assert isinstance(message, IndexWritten) and message.request is request
    assert peer.received == []


def test_hash_collisions_of_other_topics_and_keys_are_omitted(
    made: SimulatedBroker,
) -> None:
    """In Java, Aa and BB have the same hash."""
    for topic in ("Aa", "BB"):
        made.make_topic(topic)
        for key in ("Aa", "BB", "Aa BB"):
            body = f"{topic} {key}".encode()
            made.send(body, topic=topic, properties=f"KEYS\x01{key}\x02UNIQ_KEY\x01{key}u")
    assert bodies(query(made, "Aa", topic="Aa")) == [b"Aa Aa", b"Aa Aa BB"]
    assert bodies(query(made, "BB", topic="BB")) == [b"BB BB", b"BB Aa BB"]
    assert bodies(query(made, "Aau", topic="BB", unique="true")) == [b"BB Aa"]
    assert bodies(query(made, "Aa", topic="Aa", count=1)) == [b"Aa Aa BB"]


def test_hash_collisions_do_not_displace_real_hits(made: SimulatedBroker) -> None:
    made.send(b"true", properties="KEYS\x01Aa")
    for _ in range(5):
        made.send(b"false", properties="KEYS\x01BB")
    assert bodies(query(made, "Aa", count=2)) == [b"true"]


def test_a_message_stored_at_the_begin_time_is_found(made: SimulatedBroker) -> None:
    made.send(b"before", properties="KEYS\x01k")
    made.system.advance(1999)
    record = made.stored(made.send(b"asked", properties="KEYS\x01k"))
    made.system.advance(1001)
    made.send(b"behind", properties="KEYS\x01k")
    begin_ms = record.store_timestamp
    assert bodies(query(made, "k", begin_ms=begin_ms)) == [b"asked", b"behind"]
    assert bodies(query(made, "k", begin_ms=begin_ms, end_ms=begin_ms)) == [b"asked"]
    assert bodies(query(made, "k", begin_ms=begin_ms + 1)) == [b"behind"]
    assert bodies(query(made, "k", end_ms=begin_ms - 1)) == [b"before"]


def test_a_query_reads_a_limited_number_of_records(
    made: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_message, "CANDIDATES_MAX", 3)
    made.send(b"true", properties="KEYS\x01Aa")
    for _ in range(5):
        made.send(b"false", properties="KEYS\x01BB")
    with capture_logs() as lines:
        assert query(made, "Aa").code == ResponseCode.QUERY_NOT_FOUND
    assert "key query cut short" in [each["event"] for each in lines]
