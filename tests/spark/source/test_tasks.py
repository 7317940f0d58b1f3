"""Tasks over the network from a broker that fails: what is an error, a loss, or repeated."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand, encode
from protocol.headers.own import RawResponseHeader
from protocol.raw_records import piece_table
from spark.source.plan import QueueRange
from spark.source.row_filter import RowFilter
from spark.source.tasks import NetworkReader
from storage.errors import StoreError
from tests.spark.source.test_raw import over_network, ranges_of, serving, write
from tests.spark.store_writer import UNIT, StoreWriter
from tests.troupemq.fake_server import FakeServer

END = 90
PART = QueueRange("t", 0, 0, END)
RECORDS = RequestCode.READ_RECORDS


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoreWriter:
    writer = StoreWriter(tmp_path_factory.mktemp("stored"))
    for number in range(END):
        writer.append("t", 0, b"%d" % number)
    return writer.close()


def answer_of(
    command: RemotingCommand,
    stored: StoreWriter,
    *,
    count: int = 30,
    low: int = 0,
    high: int = END,
) -> RemotingCommand:
    """Return the answer of a broker without faults: at most `count` messages."""
    at = int((command.fields or {})["queueOffset"])
    following = min(max(at, low), high)
    header = RawResponseHeader(following, low, high, 0, stored.end_offset, 0, 0)
    if following != at or at == high:
        return command.answer(ResponseCode.PULL_OFFSET_MOVED, header.encode(), remark="moved")
    end = min(high, at + count)
    log = (stored.root / "commitlog" / f"{0:020}").read_bytes()
    records = stored.records[at:end]
    piece = records[0].physical_offset, records[-1].physical_offset + records[-1].record_bytes
    units = bytes(stored.queues["t", 0][at * UNIT.size : end * UNIT.size])
    header = replace(header, next_offset=end, unit_count=end - at, piece_count=1)
    body = units + piece_table(piece[:1], piece[1:]) + log[slice(*piece)]
    return command.answer(0, header.encode(), body=body)


@pytest.fixture
def broker(stored: StoreWriter) -> Iterator[FakeServer]:
    with FakeServer() as broker:
        broker.on(RECORDS, lambda command: answer_of(command, stored))
        yield broker


def numbers(broker: FakeServer, *, fails: bool = True) -> list[int]:
    rows = over_network(broker.address, [PART], ("queueOffset",), fails=fails)
    return [row["queueOffset"] for row in rows]


def test_a_range_takes_as_many_answers_as_it_needs(broker: FakeServer) -> None:
    assert numbers(broker) == list(range(END))
    asked = [broker.next(RECORDS).fields or {} for _ in range(3)]
    assert [(each["queueOffset"], each["endOffset"]) for each in asked] == [
        ("0", "90"),
        ("30", "90"),
        ("60", "90"),
    ]


def test_messages_expired_since_planning_are_a_loss(
    broker: FakeServer, stored: StoreWriter
) -> None:
    broker.on(RECORDS, lambda command: answer_of(command, stored, low=40))
    with pytest.raises(StoreError, match=r"messages 0 to 39 in queue 0 of t at b are gone: failOn"):
        numbers(broker)
    assert numbers(broker, fails=False) == list(range(40, END))


def test_a_queue_that_became_shorter_is_a_loss(broker: FakeServer, stored: StoreWriter) -> None:
    broker.on(RECORDS, lambda command: answer_of(command, stored, high=32))
    with pytest.raises(StoreError, match="queue 0 of t at b ended at 32 while it was"):
        numbers(broker)
    assert numbers(broker, fails=False) == list(range(32))


def test_a_missing_record_is_requested_again(broker: FakeServer, stored: StoreWriter) -> None:
    """A record that is in the log and in no piece ends the answer; it does not count as damaged."""

    def cut(command: RemotingCommand) -> RemotingCommand:
        whole, ten = answer_of(command, stored), answer_of(command, stored, count=10)
        assert whole.fields and whole.body and ten.body
        units = bytes(whole.body[: int(whole.fields["unitCount"]) * UNIT.size])
        whole.body = units + bytes(ten.body[10 * UNIT.size :])
        return whole

    broker.on(RECORDS, cut)
    assert numbers(broker) == list(range(END))
    asked = [(broker.next(RECORDS).fields or {})["queueOffset"] for _ in range(9)]
    assert asked == [str(number) for number in range(0, END, 10)]


def without(name: str, command: RemotingCommand, stored: StoreWriter) -> RemotingCommand:
    answer = answer_of(command, stored)
    assert answer.fields is not None
    del answer.fields[name]
    return answer


def changed(command: RemotingCommand, stored: StoreWriter, **fields: int) -> RemotingCommand:
    answer = answer_of(command, stored)
    assert answer.fields is not None
    answer.fields |= {name: str(value) for name, value in fields.items()}
    return answer


def test_an_invalid_answer_is_reported_with_its_address(
    broker: FakeServer, stored: StoreWriter
) -> None:
    for make, why in (
        (lambda c: without("unitCount", c, stored), "unitCount"),
        (lambda c: changed(c, stored, unitCount=31), "the pieces are longer or shorter"),
        (lambda c: changed(c, stored, unitCount=-1), "bytes are too few"),
        (lambda c: changed(c, stored, pieceCount=1000), "bytes are too few"),
        (lambda c: changed(c, stored, nextOffset=0), "it does not go on"),
    ):
        broker.on(RECORDS, make)
        with pytest.raises(StoreError, match=f"^{broker.address}: .*answer.* is wrong: .*{why}"):
            numbers(broker, fails=False)
    broker.on(RECORDS, lambda command: command.answer(16, remark="not for you"))
    with pytest.raises(StoreError, match=f"^{broker.address}: answered NO_PERMISSION: not for you"):
        numbers(broker, fails=False)


def test_a_connection_that_breaks_once_loses_nothing(
    broker: FakeServer, stored: StoreWriter
) -> None:
    broken: list[str] = []

    def breaks_once(command: RemotingCommand) -> RemotingCommand | None:
        if (command.fields or {})["queueOffset"] == "30" and not broken:
            broken.append("30")
            broker.push(encode(answer_of(command, stored))[:-7])
            broker.cut()
            return None
        return answer_of(command, stored)

    broker.on(RECORDS, breaks_once)
    assert numbers(broker) == list(range(END))
    assert broken == ["30"]


def test_a_broker_that_stops_midway_is_reported_with_its_address(tmp_path: Path) -> None:
    write(tmp_path)
    with serving(tmp_path, "dense", "large", "few") as address:
        part = replace(ranges_of(tmp_path)[0], broker="b")
        reader = NetworkReader({"b": address}, ("b",), ("queueOffset",), RowFilter(), False)
        reading = reader.read([part, replace(part)])
        assert next(reading).num_rows
    with pytest.raises(StoreError, match=f"^{address}: .*(refused|closed|reset)"):
        list(reading)


def test_a_broker_that_stops_serving_raw_reads_is_pulled_from(broker: FakeServer) -> None:
    def moved(command: RemotingCommand) -> RemotingCommand:
        fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0"}
        return command.answer(ResponseCode.PULL_NOT_FOUND, {**fields, "maxOffset": "0"})

    broker.on(RECORDS, lambda command: command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    broker.on(RequestCode.PULL_MESSAGE, moved)
    assert numbers(broker, fails=False) == []
    assert broker.next(RequestCode.PULL_MESSAGE).fields
