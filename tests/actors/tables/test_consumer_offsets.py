"""Tests of actors/tables/consumer_offsets.py: how far each group has come."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import MINUTE_MS
from actors.engine.supervisor import ChildSpec
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import Request
from actors.tables import offset_changes, offset_searches
from actors.tables.config_writer import ConfigWriter, TableEncoder
from actors.tables.consumer_offsets import ConsumerOffsets
from actors.tables.consumer_views import ConsumerView, Member, Subscription
from actors.tables.messages import (
    AdvanceOffset,
    AdvanceOffsets,
    CommitOffset,
    ForgetOffsets,
    ForgetTopic,
    OffsetsTold,
    ResetOffsets,
    TellOffsets,
)
from actors.tables.offset_changes import LongChanges
from actors.tables.offset_journal import OffsetJournal
from actors.tables.offset_limits import RESET_MS, OffsetCeiling, OffsetMoves, OffsetStats
from actors.tables.offset_searches import Offsets
from protocol.bodies import SubscriptionData
from protocol.bodies_tables import ConsumerOffsetTable, SubscriptionGroupConfig, TopicConfig
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from storage.files.disk import Disk
from tests.support.brokers import SimulatedBroker
from tests.support.peers import RecordingPeer, Told, ask, request, simulated, tell
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.simulation import SimulatedSystem

PATH = "/store/config/consumerOffset.json"
INTERVAL_MS = 5000


@contextmanager
def offset_table(
    disk: Disk | None = None,
    *,
    young: bool = False,
    guards: bool = True,
    consumers: SnapshotRef[Mapping[str, ConsumerView]] | None = None,
    stats: OffsetStats | None = None,
    ceiling: OffsetCeiling | None = None,
) -> Iterator[tuple[SimulatedSystem, SnapshotRef[Offsets]]]:
    offsets: SnapshotRef[Offsets] = SnapshotRef({})
    with simulated(disk) as system:
        writer = system.address("config_writer")
        system.start(
            ChildSpec("config_writer", lambda _: ConfigWriter()),
            ChildSpec("table_encoder", lambda _: TableEncoder()),
            ChildSpec(
                "consumer_offsets",
                lambda _: ConsumerOffsets(
                    PATH,
                    interval_ms=INTERVAL_MS,
                    starts_in_memory=lambda topic, queue_id: young,
                    offsets=offsets,
                    live_offsets=SnapshotRef({}),
                    moves=SnapshotRef(OffsetMoves()),
                    config_writer=writer,
                    encoder=system.address("table_encoder"),
                    consumers=consumers or SnapshotRef({}),
                    topics=SnapshotRef({"T": TopicConfig("T"), "U": TopicConfig("U")}),
                    guards=guards,
                    stats=stats,
                    ceiling=ceiling,
                    journal=OffsetJournal("/store/troupemq/offsets", SnapshotRef({})),
                ),
            ),
        )
        yield system, offsets


def update(offset: int, queue_id: int = 0, *, oneway: bool = True) -> RemotingCommand:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    return request(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=oneway)


def query(queue_id: int = 0) -> RemotingCommand:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": str(queue_id)}
    return request(RequestCode.QUERY_CONSUMER_OFFSET, fields)


def stored(system: SimulatedSystem, queue_id: int = 0) -> int | None:
    answer = ask(system, "consumer_offsets", query(queue_id))
    return int((answer.fields or {})["offset"]) if answer.code == 0 else None


def test_a_commit_request_may_lower_the_offset() -> None:
    with offset_table() as (system, _):
        answer = ask(system, "consumer_offsets", update(7, oneway=False))
        assert (answer.code, answer.fields) == (0, {})
        assert stored(system) == 7
        ask(system, "consumer_offsets", update(3, oneway=False))
        assert stored(system) == 3


def test_a_one_way_update_is_stored_and_not_answered() -> None:
    with offset_table() as (system, _):
        peer = RecordingPeer()
        tell(system, "consumer_offsets", update(3), peer)
        assert peer.received == []
        assert stored(system) == 3


def test_invalid_commits_are_refused_or_dropped_and_logged_once_a_minute() -> None:
    disk = FakeDisk()
    with offset_table(disk) as (system, _), capture_logs() as lines:
        tell(system, "consumer_offsets", update(3), RecordingPeer())
        for _ in range(3):
            tell(system, "consumer_offsets", update(7, -1), RecordingPeer())
            system.address("consumer_offsets").tell(CommitOffset("G", "T", -2, 11, RecordingPeer()))
        system.drain()
        dropped = [each for each in lines if each["event"] == "offset not taken"]
        assert [(each["queue_id"], each["dropped_in_all"]) for each in dropped] == [(-1, 1)]
        system.advance(MINUTE_MS)
        tell(system, "consumer_offsets", update(7, -1), RecordingPeer())
        assert [each for each in lines if each["event"] == "offset not taken"][1:] != []
        answer = ask(system, "consumer_offsets", update(7, -1, oneway=False))
        remark = "queueId is -1: it has to be from 0 to 2147483647"
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    with offset_table(disk) as (_, offsets):
        assert offsets.value == {"T@G": {0: 3}}


def test_odd_offsets_and_names_of_4_9_7_are_kept() -> None:
    disk = FakeDisk()
    disk.make_dirs("/store/config")
    disk.open(PATH, create=True).pwrite('{"offsetTable":{"T@ä.b":{0:1}}}'.encode(), 0)
    with offset_table(disk) as (system, _):
        system.address("consumer_offsets").tell(CommitOffset("ä.b", "T", 1, -5, None))
        ask(system, "consumer_offsets", update(-(1 << 63), oneway=False))
    with offset_table(disk) as (_, offsets):
        assert offsets.value == {"T@ä.b": {0: 1, 1: -5}, "T@G": {0: -(1 << 63)}}


def test_an_offset_in_a_pull_is_committed() -> None:
    with offset_table() as (system, _):
        system.address("consumer_offsets").tell(CommitOffset("G", "T", 2, 11, RecordingPeer()))
        system.drain()
        assert stored(system, 2) == 11


# --- what is not believed


def members(
    *peers: RecordingPeer, joined_ms: float = 0.0
) -> SnapshotRef[Mapping[str, ConsumerView]]:
    """The group G with these members."""
    return SnapshotRef({"G": view_of(*peers, joined_ms=joined_ms)})


def view_of(*peers: RecordingPeer, joined_ms: float = 0.0) -> ConsumerView:
    found = {each.peer_id: Member(each, "c", 0, 407, 0.0, joined_ms) for each in peers}
    return ConsumerView("CLUSTERING", {}, found)


def commit(system: SimulatedSystem, peer: RecordingPeer, offset: int, *, pulls: bool) -> int | None:
    """Commits one-way or with a pull; where the group is then."""
    if pulls:
        system.address("consumer_offsets").tell(CommitOffset("G", "T", 0, offset, peer))
        system.drain()
    else:
        tell(system, "consumer_offsets", update(offset), peer)
    return stored(system)


@pytest.mark.parametrize("pulls", [False, True], ids=["one-way", "with a pull"])
def test_only_a_live_member_may_lower_an_offset(pulls: bool) -> None:
    member, stranger, stats = RecordingPeer(), RecordingPeer(), OffsetStats()
    with offset_table(consumers=members(member), stats=stats) as (system, _):
        assert commit(system, stranger, 7, pulls=pulls) == 7
        assert commit(system, stranger, 9, pulls=pulls) == 9, "any client may commit forward"
        assert commit(system, stranger, 5, pulls=pulls) == 9
        assert stats.ignored_count == 1
        assert commit(system, member, 5, pulls=pulls) == 5
        assert commit(system, stranger, 5, pulls=pulls) == 5
        assert stats.ignored_count == 1, "what changes nothing is nothing to ignore"


def test_a_member_at_the_fast_port_is_recognized_by_its_host() -> None:
    """vipChannelEnabled: heartbeats come to the port, offsets to the one two below it."""
    member, stats = RecordingPeer("192.0.2.7"), OffsetStats()
    near, far = RecordingPeer("192.0.2.7", is_fast=True), RecordingPeer("192.0.2.8", is_fast=True)
    with offset_table(consumers=members(member), stats=stats) as (system, _):
        assert commit(system, near, 9, pulls=False) == 9
        assert commit(system, far, 5, pulls=False) == 9
        assert commit(system, RecordingPeer("192.0.2.7"), 5, pulls=False) == 9
        assert stats.ignored_count == 2
        assert commit(system, near, 5, pulls=False) == 5


def test_broker_knows_clients_of_its_fast_port() -> None:
    made = SimulatedBroker(1)
    assert made.new_client(fast=True).is_fast
    assert not made.client.is_fast


def test_after_a_reset_every_member_of_the_host_must_have_joined_later() -> None:
    near = RecordingPeer("192.0.2.7", is_fast=True)
    consumers = members(RecordingPeer("192.0.2.7"), joined_ms=-1.0)
    with offset_table(consumers=consumers) as (system, _):
        commit(system, near, 9, pulls=False)
        system.address("consumer_offsets").tell(ResetOffsets("G", "T", {0: 2}))
        assert commit(system, near, 10, pulls=False) == 2
        consumers.value = members(RecordingPeer("192.0.2.7"), joined_ms=1.0).value
        assert commit(system, near, 3, pulls=False) == 3


@pytest.mark.parametrize("pulls", [False, True], ids=["one-way", "with a pull"])
def test_a_setting_restores_the_behaviour_of_4_9_7(pulls: bool) -> None:
    stranger, stats = RecordingPeer(), OffsetStats()
    with offset_table(guards=False, stats=stats) as (system, _):
        for offset in (7, 5):
            assert commit(system, stranger, offset, pulls=pulls) == offset
        system.address("consumer_offsets").tell(ResetOffsets("G", "T", {0: 1}))
        assert commit(system, stranger, 5, pulls=pulls) == 5
        assert stats.ignored_count == 0


@pytest.mark.parametrize("goal", [2, 20])
def test_commits_of_members_from_before_a_reset_are_ignored(goal: int) -> None:
    member, stats = RecordingPeer(), OffsetStats()
    with offset_table(consumers=members(member, joined_ms=-1.0), stats=stats) as (system, _):
        commit(system, member, 9, pulls=False)
        system.address("consumer_offsets").tell(ResetOffsets("G", "T", {0: goal}))
        for offset in (9, 11):  # what it had begun, and what it did since
            assert commit(system, member, offset, pulls=False) == goal
            assert commit(system, member, offset, pulls=True) == goal
        assert stats.ignored_count == 4
        assert commit(system, member, goal, pulls=False) == goal
        system.advance(RESET_MS - 1)
        assert commit(system, member, 9, pulls=False) == goal
        system.advance(1)
        assert commit(system, member, goal - 1, pulls=False) == goal - 1


def test_a_member_that_joined_after_a_reset_can_commit() -> None:
    consumers = members()
    with offset_table(consumers=consumers) as (system, _):
        system.address("consumer_offsets").tell(ResetOffsets("G", "T", {0: 5}))
        system.drain()
        late = RecordingPeer()
        system.advance(10)
        now_ms = system.clock.monotonic_ms()
        consumers.value = {"G": view_of(late, joined_ms=now_ms)}
        assert commit(system, late, 6, pulls=False) == 6
        assert commit(system, late, 4, pulls=False) == 6, "back so soon is an old one's"
        assert stored(system, 1) is None
        tell(system, "consumer_offsets", update(3, 1), RecordingPeer())
        assert stored(system, 1) == 3, "another queue has nothing to do with it"


def test_commit_request_of_a_client_outside_the_group_is_a_reset() -> None:
    member = RecordingPeer()
    with offset_table(consumers=members(member, joined_ms=-1.0)) as (system, _):
        commit(system, member, 9, pulls=False)
        ask(system, "consumer_offsets", update(30, oneway=False))
        assert commit(system, member, 10, pulls=False) == 30
        system.advance(RESET_MS)
        assert commit(system, member, 10, pulls=False) == 10
        ask(system, "consumer_offsets", update(10, oneway=False))  # as it is: no reset
        assert commit(system, member, 12, pulls=False) == 12
        ask(system, "consumer_offsets", update(8, oneway=False), member)  # a member's own way
        assert commit(system, member, 9, pulls=False) == 9


def test_ignored_commits_are_logged_once_in_a_while() -> None:
    stranger, stats = RecordingPeer(), OffsetStats()
    with offset_table(stats=stats) as (system, _), capture_logs() as logs:
        commit(system, stranger, 9, pulls=False)
        for _ in range(2):
            for _ in range(5):
                commit(system, stranger, 1, pulls=False)
            system.advance(MINUTE_MS)
        lines = [each for each in logs if each["event"] == "offset commit ignored"]
        assert [each["ignored_in_all"] for each in lines] == [1, 6]
        assert stats.ignored_count == 10


def test_a_reset_is_saved_at_once() -> None:
    disk = FakeDisk()
    with offset_table(disk) as (system, offsets):
        system.address("consumer_offsets").tell(ResetOffsets("G", "T", {0: 5, 1: 6}))
        system.drain()
        assert offsets.value == {"T@G": {0: 5, 1: 6}}
        assert b"0:5,1:6" in disk.read_bytes(PATH)


# --- clones, and what others are told


def clone(**fields: str) -> RemotingCommand:
    return request(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H", **fields})


def told(system: SimulatedSystem, group: str | None = None, topic: str | None = None) -> Any:
    asker, asked = Told("asker"), Request(query(), RecordingPeer())
    system.address("consumer_offsets").tell(TellOffsets(asked, asker.address, group, topic))
    system.drain()
    (found,) = asker.take()
    assert isinstance(found, OffsetsTold)
    assert found.request is asked
    return found.offsets


@pytest.mark.parametrize("topic", [{}, {"topic": ""}, {"topic": "T"}])
def test_offsets_are_cloned_from_another_group(topic: dict[str, str]) -> None:
    with offset_table() as (system, _):
        tell(system, "consumer_offsets", update(7), RecordingPeer())
        for fields in (topic, {"topic": "missing", "offline": "true"}):
            answer = ask(system, "consumer_offsets", clone(**fields))
            assert (answer.code, answer.fields, answer.remark) == (0, None, None)
        assert told(system) == {("T", "G"): {0: 7}, ("T", "H"): {0: 7}}
        tell(system, "consumer_offsets", update(9), RecordingPeer())
        assert told(system, "H") == {("T", "H"): {0: 7}}, "a copy"


def test_an_unsubscribed_topic_is_cloned_only_with_the_offline_option() -> None:
    view = view_of(RecordingPeer())
    wanted = Subscription(SubscriptionData("U"), None)
    view = replace(view, subscriptions={"U": wanted})
    with offset_table(consumers=SnapshotRef({"G": view})) as (system, _):
        tell(system, "consumer_offsets", update(7), RecordingPeer())
        ask(system, "consumer_offsets", clone(topic="T"))
        assert told(system, "H") == {}
        ask(system, "consumer_offsets", clone(topic="T", offline="true"))
        assert told(system, "H") == {("T", "H"): {0: 7}}


def test_offset_queries_are_answered_by_group_and_topic() -> None:
    with offset_table() as (system, _):
        tell(system, "consumer_offsets", update(7), RecordingPeer())
        assert told(system, "G", "T") == {("T", "G"): {0: 7}}
        assert told(system, "G", "U") == {("U", "G"): {}}
        assert told(system, topic="T") == {("T", "G"): {0: 7}}
        assert told(system, topic="U") == told(system, "H") == {}


def test_a_new_group_begins_a_young_queue_at_its_start() -> None:
    with offset_table(young=True) as (system, _):
        assert stored(system) == 0
        assert ask(system, "consumer_offsets", query()).fields == {"offset": "0"}


def test_a_new_group_of_an_old_queue_has_no_offset() -> None:
    with offset_table() as (system, _):
        answer = ask(system, "consumer_offsets", query())
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


def test_the_offset_file_is_saved_after_a_change() -> None:
    disk = FakeDisk()
    with offset_table(disk) as (system, offsets):
        tell(system, "consumer_offsets", update(7), RecordingPeer())
        assert offsets.value == {} and not disk.exists(PATH)
        system.advance(INTERVAL_MS)
        assert offsets.value == {"T@G": {0: 7}}
        assert disk.read_bytes(PATH) == b'{\n\t"offsetTable":{\n\t\t"T@G":{0:7\n\t\t}\n\t}\n}'
        count = disk.sync_count
        system.advance(10 * INTERVAL_MS)
        assert disk.sync_count == count


def test_offsets_survive_a_stop_between_saves() -> None:
    disk = FakeDisk()
    with offset_table(disk) as (system, _):
        tell(system, "consumer_offsets", update(7), RecordingPeer())
        tell(system, "consumer_offsets", update(9, 3), RecordingPeer())
    with offset_table(disk) as (system, offsets):
        assert offsets.value == {"T@G": {0: 7, 3: 9}}
        assert (stored(system), stored(system, 3)) == (7, 9)


def test_a_slave_gets_the_whole_table() -> None:
    with offset_table() as (system, _):
        tell(system, "consumer_offsets", update(7), RecordingPeer())
        answer = ask(system, "consumer_offsets", request(RequestCode.GET_ALL_CONSUMER_OFFSET))
        assert answer.body == b'{"offsetTable":{"T@G":{0:7}}}'


def test_a_missing_field_is_answered_with_an_error() -> None:
    with offset_table() as (system, _):
        command = request(RequestCode.QUERY_CONSUMER_OFFSET, {"topic": "T"})
        assert ask(system, "consumer_offsets", command).code == ResponseCode.SYSTEM_ERROR
        assert stored(system) is None, "it goes on"


def test_a_broken_offset_file_is_kept_and_offsets_start_empty() -> None:
    disk = FakeDisk()
    disk.make_dirs("/store/config")
    disk.open(PATH, create=True).pwrite(b'{"offsetTable":{"T@G":{0:', 0)
    with offset_table(disk) as (_, offsets):
        assert offsets.value == {}
    assert disk.read_bytes(PATH) == b'{\n\t"offsetTable":{}\n}'
    assert disk.read_bytes(f"{PATH}.broken") == b'{"offsetTable":{"T@G":{0:'


@pytest.mark.parametrize("queues", [10, 2 * ENCODED_HERE_MAX])
def test_a_large_offset_table_is_encoded_on_a_thread_as_of_the_request(queues: int) -> None:
    with offset_table() as (system, _):
        for queue_id in range(queues):
            ask(system, "consumer_offsets", update(7, queue_id, oneway=False))
        encoder = next(each for each in system.figures() if each.name == "table_encoder")
        answer = ask(system, "consumer_offsets", request(RequestCode.GET_ALL_CONSUMER_OFFSET))
        table = ConsumerOffsetTable.decode(answer.body)
        assert table.offset_table == {"T@G": dict.fromkeys(range(queues), 7)}
        after = next(each for each in system.figures() if each.name == "table_encoder")
        assert after.handled_count - encoder.handled_count == (queues > ENCODED_HERE_MAX)


def test_queries_of_a_large_table_run_in_steps_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One question about a group in a table of 20,000 entries held the loop up for 80 ms."""
    monkeypatch.setattr(offset_searches, "KEYS_PER_ROUND", 4)
    with offset_table() as (system, _):
        whole = {}
        for number in range(11):
            fields = {"consumerGroup": f"G{number}", "topic": "T", "queueId": "0"}
            fields["commitOffset"] = str(number)
            command = request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            assert ask(system, "consumer_offsets", command).code == 0
            whole["T", f"G{number}"] = {0: number}
        later: list[object] = []
        table = system.address("consumer_offsets")
        monkeypatch.setattr(
            system.loop, "tell_in_next_round", lambda _, message: later.append(message)
        )
        asker = Told("asker")
        for group in (None, "G9"):
            asked = Request(query(), RecordingPeer())
            table.tell(TellOffsets(asked, asker.address, group))
        rounds = 0
        system.drain()
        while later:
            (message,), later[:] = later[:], []
            table.tell(message)
            system.drain()
            rounds += 1
        assert [each.offsets for each in asker.take()] == [whole, {("T", "G9"): {0: 9}}]
        assert rounds == 6


def test_clones_obey_the_offset_limits_and_log_omitted_offsets() -> None:
    groups: SnapshotRef[Mapping[str, SubscriptionGroupConfig]]
    groups = SnapshotRef({"G": SubscriptionGroupConfig("G")})
    topics: SnapshotRef[Mapping[str, TopicConfig]] = SnapshotRef({"T": TopicConfig("T")})
    ceiling = OffsetCeiling(groups, topics, 3)
    with offset_table(ceiling=ceiling) as (system, _), capture_logs() as lines:
        ask(system, "consumer_offsets", update(7, oneway=False))
        for number in range(3):
            fields = {"consumerGroup": "G", "topic": f"gone-{number}", "queueId": "0"}
            command = request(RequestCode.UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": "1"})
            assert ask(system, "consumer_offsets", command).code == 0
        answer = ask(system, "consumer_offsets", clone(topic="T"))
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert told(system, "H") == {}
        groups.value = {**groups.value, "H": SubscriptionGroupConfig("H")}
        assert ask(system, "consumer_offsets", clone()).code == 0
        assert told(system, "H") == {("T", "H"): {0: 7}}
    (line,) = [each for each in lines if each["event"] == "offsets not cloned"]
    assert line["times"] == 3


def test_first_offset_of_a_settled_queue_is_stored_unless_its_topic_is_gone() -> None:
    """The topic may be created again, with queues from 0."""
    with offset_table() as (system, _):
        commits = [AdvanceOffset("G", topic, 0, 7, None) for topic in ("T", "gone")]
        system.address("consumer_offsets").tell(AdvanceOffsets(commits, Told("receipts").address))
        system.drain()
        assert told(system, "G") == {("T", "G"): {0: 7}}


def test_others_have_their_turn_while_many_offsets_are_cloned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clone of 65,536 offsets kept the loop from all other clients for 70 ms."""
    monkeypatch.setattr(offset_changes, "CHANGED_PER_ROUND", 4)
    with offset_table() as (system, _):
        for queue_id in range(11):
            ask(system, "consumer_offsets", update(7, queue_id, oneway=False))
        later: list[object] = []
        monkeypatch.setattr(
            system.loop, "tell_in_next_round", lambda _, message: later.append(message)
        )
        table, peers = system.address("consumer_offsets"), [RecordingPeer(), RecordingPeer()]
        for peer in peers:
            table.tell(Request(clone(), peer))
        system.drain()
        pieces = 0
        while later:
            assert stored(system) == 7, "others are answered between the pieces"
            (message,), later[:] = later[:], []
            table.tell(message)
            system.drain()
            pieces += 1
        assert [each.code for peer in peers for each in peer.received] == [0, 0]
        assert told(system, "H") == {("T", "H"): dict.fromkeys(range(11), 7)}
        assert 8 <= pieces <= 11, "one clone after the other"


@pytest.mark.parametrize("by", ["topic", "group"])
def test_others_have_their_turn_while_many_offsets_are_deleted(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion of a group with offsets in 20,000 topics kept all others waiting for 0.1 s."""
    monkeypatch.setattr(offset_changes, "CHANGED_PER_ROUND", 4)
    with offset_table() as (system, offsets):
        for number in range(11):
            fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "7"}
            fields["topic" if by == "group" else "consumerGroup"] += str(number)
            command = request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            assert ask(system, "consumer_offsets", command).code == 0
        ask(system, "consumer_offsets", update(7, 1, oneway=False))
        later: list[object] = []
        monkeypatch.setattr(
            system.loop, "tell_in_next_round", lambda _, message: later.append(message)
        )
        table = system.address("consumer_offsets")
        thens: list[str] = []
        table.tell(ForgetTopic("T", thens.append) if by == "topic" else ForgetOffsets("G"))
        system.drain()
        pieces = 0
        while later:
            assert ask(system, "consumer_offsets", query(9)).code != 0, "others are answered"
            assert not thens
            (message,), later[:] = later[:], []
            table.tell(message)
            system.drain()
            pieces += 1
        assert pieces >= 3
        assert offsets.value == {}
        assert thens == ([""] if by == "topic" else []), "when the last one is deleted"


def test_all_changes_of_a_round_share_its_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 topics deleted at once, each with a search of 80,000 entries, took 1.5 s in one round."""
    monkeypatch.setattr(offset_changes, "CHANGED_PER_ROUND", 10)
    rounds, done = [1], list[int]()

    def steps() -> Iterator[None]:
        for _ in range(4):
            yield
        done.append(rounds[0])

    changes = LongChanges(lambda: rounds[0])
    assert [changes.begin(steps(), None) for _ in range(5)] == [False, False, True, False, False]
    assert done == [1, 1]
    rounds[0] = 2
    assert changes.go_on() and done == [1, 1, 2, 2]
    rounds[0] = 3
    assert not changes.go_on() and not changes.begin(steps(), None) and done[4:] == [3, 3]
