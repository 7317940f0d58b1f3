"""Attempts of a hostile master with the tables that its slave takes: A37."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from time import thread_time
from zlib import compress

import pytest
from structlog.testing import capture_logs

from actors.delays.messages import TakeDelayOffsets
from actors.replication import slave_sync
from actors.tables import offset_changes, offset_limits, topics
from actors.tables.messages import (
    GroupsGone,
    MergeOffsets,
    RemoveTopic,
    ReplaceTopics,
    TopicsGone,
)
from protocol.bodies_tables import (
    ConsumerOffsetTable,
    DataVersion,
    DelayOffsetTable,
    TopicConfig,
    TopicConfigTable,
)
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from storage.tables import delay_offsets
from storage.tables.ahead_set import AheadSet
from tests.support.brokers import BROKER, SimulatedBroker
from tests.support.slave_tables import synced
from tests.support.told import times

COUNT = 4_000
NAMES = [f"n{number}" for number in range(COUNT)]


def a_slave() -> SimulatedBroker:
    made = SimulatedBroker(5, config=replace(BROKER, broker_role="SLAVE", broker_id=1))
    made.system.drain()
    return made


def offsets(names: list[str], offset: int = 1) -> MergeOffsets:
    return MergeOffsets(ConsumerOffsetTable({f"{name}@{name}": {0: offset} for name in names}))


def growths(made: SimulatedBroker, size: Callable[[], int]) -> list[int]:
    """Return the changes of a size in the steps of the loop."""
    found, before = [], size()
    while made.system.loop.step():
        found.append(abs(size() - before))
        before = size()
    return found


def test_a37_many_offsets_of_a_master_are_merged_and_deleted_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """400,000 offsets took 0.3 s."""
    monkeypatch.setattr(offset_changes, "CHANGED_PER_ROUND", 100)
    made, live = a_slave(), lambda: len(made.broker.tables.live_offsets.value)
    table = made.system.address("consumer_offsets")
    for message in (offsets(NAMES), TopicsGone(frozenset(NAMES)), offsets(["other"])):
        table.tell(message)
        steps = growths(made, live)
        assert max(steps) <= 100
    assert [*made.broker.tables.live_offsets.value] == ["other@other"]
    made.system.advance(6_000)
    assert made.broker.tables.offsets.value == {"other@other": {0: 1}}


@pytest.mark.heavy
@pytest.mark.parametrize("gone", [GroupsGone, TopicsGone])
def test_a37_deleted_groups_and_topics_are_searched_for_once(
    gone: type[GroupsGone] | type[TopicsGone],
) -> None:
    """The table was searched for each: 4,000 took 0.7 s, 100,000 seven minutes."""
    made = a_slave()
    table = made.system.address("consumer_offsets")
    table.tell(offsets(NAMES))
    table.tell(gone(frozenset(NAMES), frozenset()))
    made.system.drain()
    began_s = thread_time()
    table.tell(offsets(["other"]))
    made.system.drain()
    assert thread_time() - began_s < 0.2
    assert [*made.broker.tables.live_offsets.value] == ["other@other"]


def test_a37_queues_of_many_deleted_topics_are_removed_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """100,000 topics took 0.15 s, with each table of the master."""
    monkeypatch.setattr(topics, "REMOVED_PER_ROUND", 10)
    made = a_slave()
    told: list[str] = []

    def noted(topic: str, request: None, before: int) -> RemoveTopic:
        told.append(topic)
        return RemoveTopic(topic, request, before)

    monkeypatch.setattr(topics, "RemoveTopic", noted)
    configs = {name: TopicConfig(name) for name in NAMES[:100]}
    table = made.system.address("topics")
    table.tell(ReplaceTopics(TopicConfigTable(configs, DataVersion(1, 1)), 0, True))
    made.system.drain()
    table.tell(ReplaceTopics(TopicConfigTable({}, DataVersion(2, 2)), 0, True))
    removed = growths(made, lambda: len(told))
    made.system.advance(1000)
    removed += growths(made, lambda: len(told))
    assert {*told} >= {*configs}
    assert max(removed) <= 10


def test_a37_a_slave_keeps_a_limited_number_of_a_masters_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each table of 16 MiB added a million groups, which took 1.7 GiB."""
    monkeypatch.setattr(offset_limits, "KEYS_MAX", 10)
    monkeypatch.setattr(offset_limits, "OFFSETS_MAX", 20)
    made = a_slave()
    table = made.system.address("consumer_offsets")
    with capture_logs() as logs:
        table.tell(offsets(NAMES[:8]))
        table.tell(offsets(NAMES[:30], 2))
        table.tell(MergeOffsets(ConsumerOffsetTable({"n0@n0": dict.fromkeys(range(12), 1)})))
        made.system.drain()
    assert times(logs, "offsets of the master not taken: too many") == [1]
    live = made.broker.tables.live_offsets.value
    assert [*live] == [f"{name}@{name}" for name in NAMES[:10]]
    assert live["n0@n0"] == {0: 2} and live["n9@n9"] == {0: 2}


@pytest.mark.parametrize("what", ["topics", "groups"])
def test_a37_tables_with_too_many_entries_are_not_taken(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as logs, synced() as (master, slave, _):
        for name in NAMES[:30]:
            master.make_topic(name) if what == "topics" else master.make_group(name)
        most = len(getattr(master.broker.tables, what).value) - 1
        monkeypatch.setattr(slave_sync, "ENTRIES_MAX", most)
        slave.system.advance(4000)
        assert len(getattr(slave.broker.tables, what).value) == most - 29
    (reason,) = [
        each["reason"] for each in logs if each["event"] == "table sync from master failed"
    ]
    assert f"a table of {most + 1} entries; a slave takes at most {most}" in reason


def test_a37_delivered_timers_of_a_master_have_one_limit() -> None:
    """Eight levels of 43 KB unfolded to 512 MiB, which took 1.7 s on the loop."""
    bits = b64encode(compress(bytes(6_000))).decode()
    ahead = {level: f"0:{bits}" for level in range(1, 9)}
    table = DelayOffsetTable({1: 1}, ahead)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delay_offsets, "AHEAD_BYTES_MAX", 16_000)
        sets = delay_offsets.ahead_sets(table)
    assert [each.size_bytes for each in sets.values()] == [6_000, 6_000, 4_000, 0, 0, 0, 0, 0]


def test_a37_many_delivered_timers_are_encoded_on_a_thread() -> None:
    made = a_slave()
    ahead = AheadSet(0, bytes(100_000) + b"\1")
    table = DelayOffsetTable({1: 1}, {1: ahead.encode()})
    message = TakeDelayOffsets(table, "{}", {1: ahead})
    made.system.address("delay_offsets").tell(message)
    encoder = made.system.address("table_encoder")
    before = encoder.handled
    answer = made.ask(RemotingCommand(RequestCode.GET_ALL_DELAY_OFFSET))
    assert DelayOffsetTable.decode(answer.body).delivered_ahead == table.delivered_ahead
    assert encoder.handled == before + 1
