"""Tests of actors/tables/offset_limits.py: the limit of offsets of unknown groups and topics."""

from collections.abc import Mapping

import pytest

from actors.engine.interfaces import SnapshotRef
from actors.tables import offset_limits
from actors.tables.offset_limits import OffsetCeiling
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from protocol.codes import ResponseCode
from protocol.topic_names import TRANSACTION_GROUP


class Case:
    """A ceiling of `most`, a group G and a topic T with four queues."""

    def __init__(self, most: int = 3) -> None:
        self.groups: SnapshotRef[Mapping[str, SubscriptionGroupConfig]] = SnapshotRef({})
        self.make_groups("G")
        self.topics: SnapshotRef[Mapping[str, TopicConfig]] = SnapshotRef(
            {"T": TopicConfig("T", 4, 4)}
        )
        self.ceiling = OffsetCeiling(self.groups, self.topics, most)

    def make_groups(self, *names: str) -> None:
        self.groups.value = {name: SubscriptionGroupConfig(name) for name in names}

    def count(self, group: str, topic: str = "T", queue_id: int = 0, keys: int = 0) -> int:
        """0, or with which code it would be refused."""
        refusal = self.ceiling.count(group, topic, queue_id, keys)
        return 0 if refusal is None else refusal.code


def test_known_offsets_always_pass_and_new_ones_up_to_the_limit() -> None:
    case = Case(3)
    assert [case.count(f"made-up-{n}") for n in range(5)] == [0, 0, 0, 26, 26]
    assert [case.count("G", queue_id=n) for n in range(4)] == [0] * 4
    assert case.count("G", queue_id=4) == case.count("G", "U") == ResponseCode.TOPIC_NOT_EXIST
    assert case.count("made-up-1") == 0, "one that counts already"
    assert case.count(TRANSACTION_GROUP) == 0


def test_created_groups_and_removed_offsets_make_room() -> None:
    case = Case(2)
    assert [case.count("A"), case.count("B"), case.count("C")] == [0, 0, 26]
    offsets = {"T@A": {0: 1}, "T@B": {0: 1}}
    case.ceiling.count_again(offsets)
    assert case.count("C") == 26
    case.make_groups("G", "A")
    case.ceiling.count_again(offsets)
    assert [case.count("C"), case.count("D")] == [0, 26]
    case.ceiling.count_again({"T@C": {0: 1}})
    assert [case.count("D"), case.count("E")] == [0, 26]


def test_offsets_loaded_from_the_file_count() -> None:
    case = Case(2)
    case.ceiling.begin({"T@G": {0: 1, 3: 1}, "T@A": {0: 1, 1: 1}})
    assert (case.count("B"), case.count("G")) == (26, 0)


def test_the_total_number_of_offsets_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_limits, "KEYS_MAX", 10)
    case = Case()
    assert case.count("G", keys=9) == 0
    assert case.count("G", keys=10) == ResponseCode.SYSTEM_ERROR


def test_without_max_auto_groups_offsets_are_unlimited() -> None:
    case = Case(0)
    assert [case.count(f"made-up-{n}") for n in range(100)] == [0] * 100


def test_queues_of_all_offsets_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of 65,536 queues and a thousand groups were 65 million offsets."""
    monkeypatch.setattr(offset_limits, "OFFSETS_MAX", 3)
    case = Case()
    case.ceiling.begin({"T@G": {0: 1, 1: 1}})
    assert case.count("G", queue_id=2) == 0
    case.ceiling.note_kept(1)
    assert case.count("G", queue_id=3) == ResponseCode.SYSTEM_ERROR
    case.ceiling.count_again({"T@G": {0: 1}})
    assert case.count("G", queue_id=3) == 0
