"""The ends of a queue, the offset at a time, the first store time; through a whole broker."""

from dataclasses import replace

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from tests.support import golden
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.pulls import as_recorded, as_slave, broker, fill, recorded
from troupemq.testing.fake_disk import FakeDisk

START_MS = 1_700_000_000_000
STEP_MS = 1_000


def ask(made: SimulatedBroker, code: RequestCode, **fields: object) -> RemotingCommand:
    asked = {"topic": "Topic", "queueId": 0, **fields}
    return made.ask(RemotingCommand(code, {name: str(value) for name, value in asked.items()}))


def offset(made: SimulatedBroker, code: RequestCode, **fields: object) -> int:
    answer = ask(made, code, **fields)
    assert (answer.code, answer.remark, answer.body) == (ResponseCode.SUCCESS, None, None)
    assert answer.fields is not None and [*answer.fields] == ["offset"]
    return int(answer.fields["offset"])


def test_min_and_max_offset_follow_the_messages() -> None:
    made = broker()
    for count in range(3):
        assert offset(made, RequestCode.GET_MAX_OFFSET) == count
        assert offset(made, RequestCode.GET_MIN_OFFSET) == 0
        fill(made, 1)
    assert offset(made, RequestCode.GET_MAX_OFFSET, queueId=1) == 0


def test_the_min_offset_is_that_of_the_first_retained_message() -> None:
    made = broker(12, store=replace(STORE, consume_queue_file_bytes=100))
    made.stop()
    made.start()
    queue = made.broker.store.consume_queues.get("Topic", 0)
    assert queue is not None
    unit = queue.unit(5)
    assert unit is not None
    queue.trim_before(unit[0])
    assert offset(made, RequestCode.GET_MIN_OFFSET) == 5
    assert offset(made, RequestCode.GET_MAX_OFFSET) == 12
    assert offset(made, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=0) == 5


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    ],
)
def test_every_offset_of_a_missing_queue_is_0(code: RequestCode) -> None:
    made = broker(3)
    for where in ({"topic": "Nobody"}, {"queueId": 9}, {"queueId": -1}):
        assert offset(made, code, timestamp=START_MS, **where) == 0
    assert made.broker.store.consume_queues.get("Nobody", 0) is None, "asking makes no queue"


def test_a_time_query_returns_the_first_message_since_then() -> None:
    made = broker()
    made.system.advance(STEP_MS)
    for _ in range(5):  # one a second, at the full seconds of the broker's clock
        fill(made, 1)
        made.system.advance(STEP_MS)
    first_ms = START_MS + STEP_MS
    at = {
        0: 0,
        first_ms: 0,
        first_ms + 400: 1,
        first_ms + 600: 1,
        first_ms + 2 * STEP_MS: 2,
        first_ms + 4 * STEP_MS: 4,
        first_ms + 4 * STEP_MS + 1: 5,
        first_ms + 9 * STEP_MS: 5,
    }
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    assert {time: offset(made, search, timestamp=time) for time in at} == at


def test_the_first_of_messages_of_one_millisecond_is_found() -> None:
    """A batch of 50 behind 10 others: 34 was the answer."""
    made = broker(10)
    made.system.advance(STEP_MS)
    fill(made, 50)
    made.system.advance(STEP_MS)
    fill(made, 5)
    times = [record.store_timestamp for record in made.messages()]
    for wanted in {times.index(each) for each in times}:
        found = offset(made, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=times[wanted])
        assert found == wanted


def test_modification_times_of_queue_files_do_not_matter() -> None:
    """A copied or repaired file seemed to be new, and nothing behind it was looked at."""
    made = broker(store=replace(STORE, consume_queue_file_bytes=100))
    for _ in range(12):
        fill(made, 1)
        made.system.advance(STEP_MS)
    assert isinstance(made.disk, FakeDisk)
    made.disk.now_ms = made.clock.now_ms() + 1_000_000
    made.stop()
    made.start()
    assert len(made.disk.listdir("/store/consumequeue/Topic/0")) == 3
    for number, record in enumerate(made.messages()):
        stored_ms = record.store_timestamp
        assert offset(made, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=stored_ms) == number


def test_the_first_store_time_is_that_of_the_first_message() -> None:
    made = broker()
    made.system.advance(STEP_MS)
    fill(made, 1)
    stored_ms = made.messages()[0].store_timestamp
    made.system.advance(STEP_MS)
    fill(made, 1)
    answer = ask(made, RequestCode.GET_EARLIEST_MSG_STORETIME)
    assert (answer.code, answer.fields) == (0, {"timestamp": str(stored_ms)})
    for where in ({"queueId": 1}, {"topic": "Nobody"}):
        answer = ask(made, RequestCode.GET_EARLIEST_MSG_STORETIME, **where)
        assert (answer.code, answer.fields) == (0, {"timestamp": "-1"})


def test_a_query_without_its_queue_is_answered_with_1() -> None:
    made = broker()
    for code in (RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
        answer = made.ask(RemotingCommand(code, {"topic": "Topic"}))
        assert (answer.code, answer.fields) == (ResponseCode.SYSTEM_ERROR, None)
        assert answer.remark


def of_negative() -> SimulatedBroker:
    made = broker()
    made.make_topic("GN_T")
    fill(made, 6, topic="GN_T")
    return made


def test_offset_queries_are_answered_as_by_the_original() -> None:
    golden.golden_root()
    made = of_negative()
    for pair in (61, 113):
        as_recorded(made, "negative", pair)
    for pair in (295, 296, 297, 299):
        as_recorded(made, "java-4.9.7", pair)
    made = as_slave(made)
    as_recorded(made, "negative", 103)
    made.stop()
    made = as_slave(broker())
    as_recorded(made, "negative", 72)


def test_the_java_clients_offset_queries_are_answered_as_by_the_original() -> None:
    golden.golden_root()
    made = broker()
    made.make_topic("GT_Basic")
    for queue_id, count in ((0, 5), (1, 11), (3, 5)):
        fill(made, count, topic="GT_Basic", queue_id=queue_id)
    for pair in (104, 105, 106, 138, 185, 187):
        as_recorded(made, "java-4.9.7", pair)
    fill(made, 1, topic="GT_Basic", queue_id=1)
    fill(made, 1, topic="GT_Basic", queue_id=3)
    for pair in (186, 188):
        as_recorded(made, "java-4.9.7", pair)


def test_the_java_client_finds_min_and_max_offset_by_time() -> None:
    """Past the end 4.9.7 names the last message, which is an older one."""
    golden.golden_root()
    made = SimulatedBroker(21, start_ms=1_795_188_800_000)
    made.make_topic("GT_Basic")
    for _ in range(5):
        fill(made, 1, topic="GT_Basic")
        made.system.advance(STEP_MS)
    as_recorded(made, "java-4.9.7", 108)  # an hour before them
    request, answer = recorded("java-4.9.7", 109)  # an hour after
    assert answer.fields == {"offset": "4"}
    assert made.ask(request).fields == {"offset": "5"}
