"""The table of held pulls alone: lookups, and memory per pull."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from actors.network.messages import Request
from actors.pulling import held_pulls
from actors.pulling.held_pulls import HoldTable, hold_of
from actors.pulling.messages import NEVER, Hold
from protocol.codes import RequestCode
from protocol.frame import decode_json_header, encode
from protocol.headers.client import PullMessageHeader
from protocol.message import MessageRecord, encode_record
from protocol.standard_json import dumps, loads
from protocol.tags import TagFilter, java_hash_code
from storage.queues.message_filter import MessageFilter
from tests.support.brokers import pull_command
from tests.support.peers import RecordingPeer

PULLS = 4_000
HELD_BYTES_MAX = 500
"""Maximum bytes per pull: 100,000 of them are 50 MiB."""


def hold(
    offset: int,
    expression: str = "*",
    *,
    peer: RecordingPeer | None = None,
    waits_for: int | None = None,
    deadline_ms: float = 1_000.0,
    wanted: MessageFilter | None = None,
) -> Hold:
    command = pull_command(offset, expression=expression)
    header = PullMessageHeader.decode(command.fields)
    codes = TagFilter.parse(expression).codes
    if codes is not None:
        wanted = MessageFilter(codes)
    request = Request(command, peer or RecordingPeer())
    return hold_of(request, header, wanted, deadline_ms, offset if waits_for is None else waits_for)


def test_the_table_returns_pulls_that_a_record_may_satisfy_and_keeps_the_rest() -> None:
    table = HoldTable()
    early, late, tag = hold(3), hold(9), hold(3, "TagA")
    for each in (early, late, tag):
        table.add(each)
    assert table.arrived(b"Topic", 1, 5, 0) == []
    assert table.arrived(b"Topic", 0, 2, 0) == []
    assert table.arrived(b"Topic", 0, 3, 0) == [early]
    assert table.arrived(b"Topic", 0, 4, java_hash_code("TagA")) == [tag]
    assert (table.count, table.all()) == (1, [late])
    assert table.count == 0


def test_the_table_finds_due_pulls_and_those_of_a_connection() -> None:
    table = HoldTable()
    peer = RecordingPeer()
    first, second, third = (
        hold(0, peer=each, deadline_ms=number * 100.0)
        for number, each in enumerate((None, peer, peer))
    )
    for one in (first, second, third):
        table.add(one)
    assert table.due(99.9) == [first]
    assert table.due(200.0, 0) == []
    assert table.due(100.0) == [second]
    assert table.of_peer(peer.peer_id) == [third]
    assert table.count == 0


def test_pulls_that_wait_for_the_scrubber_are_not_woken_by_messages() -> None:
    table = HoldTable()
    doubtful, other = hold(3, waits_for=NEVER), hold(3)
    for each in (doubtful, other):
        table.add(each)
    assert table.arrived(b"Topic", 0, 3, 0) == [other]
    assert table.verified(b"Topic", 0, 2) == []
    assert table.verified(b"Topic", 0, 3) == [doubtful]
    assert table.count == 0


def test_a_held_pull_keeps_its_request_unchanged() -> None:
    command = pull_command(7, hold_ms=15_000)
    command.opaque, command.language, command.version, command.flag = 1 << 30, 1, 401, 2
    header = PullMessageHeader.decode(command.fields)
    came = Request(command, RecordingPeer(), seen_as="seen", header=header)
    again = hold_of(came, header, None, 0.0, 7).request()
    command.fields = None  # they are in the header
    assert again == came
    assert again.command.code == RequestCode.PULL_MESSAGE


def test_a_held_pull_takes_at_most_half_a_kilobyte() -> None:
    peer, table = RecordingPeer(), HoldTable()
    command = pull_command(1 << 40, hold_ms=60_000, topic="A topic of theirs", expression="TagA")
    frame = encode(command)
    fields = loads(frame[8:])
    frames = [dumps({**fields, "opaque": opaque}) for opaque in range(1 << 20, (1 << 20) + PULLS)]
    tracemalloc = pytest.importorskip("tracemalloc", reason="PyPy has no tracemalloc")
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number, header_bytes in enumerate(frames):
        request = Request(decode_json_header(header_bytes), peer)
        header = PullMessageHeader.decode(request.command.fields)
        table.add(hold_of(request, header, None, number * 10.5, header.queue_offset))
        del header, request
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / PULLS <= HELD_BYTES_MAX


def test_a_message_looks_only_at_the_pulls_of_its_tag() -> None:
    """A thousand messages of one batch looked at ten thousand pulls each: seconds."""

    class Counted(int):
        looks = 0

        def __le__(self, other: int) -> bool:
            Counted.looks += 1
            return int(self) <= other

    table = HoldTable()
    holds = [hold(0, f"tag{number}", waits_for=Counted(0)) for number in range(1_000)]
    plain, late = hold(0, waits_for=Counted(0)), hold(0, "tag7", waits_for=Counted(9))
    for each in (*holds, late):
        table.add(each)
    assert table.arrived(b"Topic", 0, 5, java_hash_code("tag7")) == [holds[7]]
    assert Counted.looks == 2
    table.add(plain)
    assert table.arrived(b"Topic", 0, 5, java_hash_code("other")) == [plain]
    assert table.arrived(b"Topic", 0, 9, java_hash_code("tag7")) == [late]
    assert table.of_queue(b"Topic", 0, 10_000) == [each for each in holds if each is not holds[7]]
    assert table.count == 0 and table.arrived(b"Topic", 0, 9, java_hash_code("tag8")) == []


def test_pulls_keep_a_limited_number_of_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection held a gigabyte of them with a thousand pulls of 64 KiB."""
    monkeypatch.setattr(held_pulls, "TAGS_MAX", 2_500)
    table = HoldTable()
    first, second, third = (
        hold(0, "||".join(f"{letter}{number}" for number in range(1_000))) for letter in "abc"
    )
    for each in (first, second):
        assert table.has_room(each.peer.peer_id, each.wanted)
        table.add(each)
    assert not table.has_room(third.peer.peer_id, third.wanted)
    assert table.has_room(third.peer.peer_id, first.wanted), "it is there already"
    assert table.has_room(third.peer.peer_id, hold(0, "a||b").wanted)
    assert table.arrived(b"Topic", 0, 0, java_hash_code("a1")) == [first]
    assert table.has_room(third.peer.peer_id, third.wanted)


def test_a_message_is_compared_once_with_a_filter_that_many_pulls_have() -> None:
    """Ten thousand pulls with one property filter took 10 ms for each message."""
    asked: list[str] = []

    def matches(properties: Mapping[str, str]) -> bool:
        asked.append(properties["a"])
        return properties["a"] == "5"

    record = MessageRecord("Topic", b"body", properties=b"a\x014")
    table = HoldTable(lambda offset, size: memoryview(encode_record(record)))
    holds = [hold(0, wanted=MessageFilter(None, matches=matches)) for _ in range(100)]
    for each in holds:
        table.add(each)
    assert table.arrived(b"Topic", 0, 5, 0, 0, 100) == [] and asked == ["4"]
    record = replace(record, properties=b"a\x015")
    assert table.arrived(b"Topic", 0, 6, 0, 0, 100) == holds and len(asked) <= 3
    assert table.count == 0


def test_pulls_with_equal_tags_share_their_places() -> None:
    """With 170 tags each, 200,000 held pulls took gigabytes."""
    table = HoldTable()
    wanted = "||".join(f"tag{number}" for number in range(50))
    for _ in range(100):
        table.add(hold(0, wanted))
    (index,) = table._indexes.values()
    assert len(index.by_tag) == 50 and {len(each) for each in index.by_tag.values()} == {1}
    assert len(table.arrived(b"Topic", 0, 0, java_hash_code("tag49"))) == 100
    assert not index.by_tag and not table._indexes


RECORD = encode_record(MessageRecord("Topic", b"body", properties=b"a\x014"))


def with_filters(count: int, asked: list[int], chars: int = 0) -> tuple[HoldTable, list[Hold]]:
    """Return a table of pulls that each have a property filter of their own, which notes calls."""

    def filter_of(number: int) -> MessageFilter:
        def matches(_: Mapping[str, str]) -> bool:
            asked.append(number)
            return False

        return MessageFilter(None, matches=matches, chars=chars)

    table = HoldTable(lambda offset, size: memoryview(RECORD))
    holds = [hold(0, wanted=filter_of(number)) for number in range(count)]
    for each in holds:
        table.add(each)
    return table, holds


@pytest.mark.parametrize("count", [20, 300])
def test_many_property_filters_are_not_all_asked_about_each_message(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 pulls of one connection, each with another filter, took 10 ms for each message."""
    monkeypatch.setattr(held_pulls, "FILTER_WORK_MAX", 50_000)
    asked: list[int] = []
    table, holds = with_filters(count, asked)
    table.begin_batch()
    woken: list[Hold] = []
    for offset in range(1_000):
        woken += table.arrived(b"Topic", 0, offset, 0, 0, 100)
    assert 0 < len(asked) < 50_000 // 64
    assert woken == holds and table.count == 0, "each is compared when it reads"


def test_each_batch_may_ask_property_filters_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pulls, "FILTER_WORK_MAX", 1_000)
    asked: list[int] = []
    table, _ = with_filters(1, asked)
    for offset in range(100):
        table.begin_batch()
        assert table.arrived(b"Topic", 0, offset, 0, 0, 100) == []
    assert len(asked) == 100
    table, holds = with_filters(1, asked, chars=8_000)
    table.begin_batch()
    assert table.arrived(b"Topic", 0, 0, 0, 0, 100) == holds, "a long one costs more"


def test_pulls_keep_a_limited_number_of_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled expression of 8 KiB takes 3 MiB as long as a pull waits."""
    monkeypatch.setattr(held_pulls, "TAGS_MAX", 2_500)
    table, (first, second) = with_filters(2, [], chars=1_000)
    third = hold(0, wanted=MessageFilter(None, matches=lambda _: True, chars=1_000))
    assert not table.has_room(third.peer.peer_id, third.wanted)
    assert table.has_room(third.peer.peer_id, first.wanted), "it is there already"
    assert table.of_peer(second.peer.peer_id) == [second]
    assert table.has_room(third.peer.peer_id, third.wanted)


def test_one_queue_has_a_limited_number_of_held_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pulls, "HELD_OF_QUEUE_MAX", 1)
    table, one = HoldTable(), hold(0)
    table.add(one)
    assert not table.has_room(1, None, one.queue)
    assert table.has_room(1, None, (b"Topic", 1))


def test_a_group_is_found_among_the_pulls_of_a_queue_without_a_search() -> None:
    """A receive asked 10,000 pulls of each queue for the name of its group."""

    class Counted(str):
        looks = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Counted.looks += 1
            return str.__eq__(self, other)

    table = HoldTable()
    holds = [hold(0) for _ in range(1_000)]
    for number, each in enumerate(holds):
        each.header.consumer_group = f"group{number % 500}"
        table.add(each)
    assert not table.is_held("Topic", 0, Counted("other"))
    assert table.is_held("Topic", 0, Counted("group7")) and Counted.looks < 10
    assert not table.is_held("Topic", 1, "group7")
    for each in holds:
        if each.header.consumer_group == "group7":
            assert table.of_peer(each.peer.peer_id) == [each]
    assert not table.is_held("Topic", 0, "group7")
    table.all()
    assert not table._groups
