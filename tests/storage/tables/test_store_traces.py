"""Traces of lost topics and groups in the rest of a store."""

from pathlib import Path

from protocol.bodies_tables import SubscriptionGroupTable, TopicConfig, TopicConfigTable
from storage.files.disk import RealDisk
from storage.tables.groups import always_present as usual_groups
from storage.tables.groups import completed_groups, parse_groups
from storage.tables.store_traces import StoreTraces
from storage.tables.topics import READ_WRITE, always_present, completed_topics, parse_topics
from tests.support.golden import store


def test_the_topics_of_a_golden_store_are_restored_from_its_traces(tmp_path: Path) -> None:
    root = store("clean", tmp_path)
    path = root / "config" / "topics.json"
    theirs = parse_topics(path.read_text()).topic_configs
    path.unlink()
    numbers = StoreTraces(RealDisk(), str(path)).queue_numbers()
    known = {topic.topic_name: topic for topic in always_present("C", "b")}
    table, found = completed_topics(None, numbers, known, 1000)
    assert "GS_T1" in found
    assert "SCHEDULE_TOPIC_XXXX" not in found, "every broker has it"
    for name in found:
        if name in theirs:  # the half topics get into the file with the first check only
            ours, other = table.topic_configs[name], theirs[name]
            assert ours.perm == other.perm or name.startswith("%DLQ%")
            assert 0 < ours.write_queue_nums <= other.write_queue_nums
    used = {each.name for each in (root / "consumequeue").iterdir()} - known.keys()
    assert used <= table.topic_configs.keys()
    assert (table.data_version.timestamp, table.data_version.counter) == (1000, 1)


def test_the_groups_of_a_golden_store_are_restored_from_its_traces(tmp_path: Path) -> None:
    root = store("clean", tmp_path)
    path = root / "config" / "subscriptionGroup.json"
    theirs = parse_groups(path.read_text()).subscription_group_table
    usual = {group.group_name for group in usual_groups()}
    path.unlink()
    groups = StoreTraces(RealDisk(), str(path)).groups()
    assert groups == {"GS_CG1", "GS_CGretry"}
    table, found = completed_groups(None, groups, 1000)
    assert set(found) == groups <= theirs.keys() - usual
    (root / "config" / "consumerOffset.json").write_text("{")
    (root / "config" / "consumerOffset.json.bak").write_text("")
    assert StoreTraces(RealDisk(), str(path)).groups() == {"GS_CGretry"}
    assert table.data_version.counter == 1


def test_only_missing_entries_are_added_to_an_older_version() -> None:
    mine = {"A": TopicConfig("A", 8, 8, 4), "B": TopicConfig("B", 2, 2, 2)}
    numbers = {"A": 3, "B": 5, "C": 2, "KNOWN": 1, "SMALL": 4}
    known = {"KNOWN": TopicConfig("KNOWN", 1, 1), "SMALL": TopicConfig("SMALL", 1, 1, 7)}
    table, found = completed_topics(TopicConfigTable(mine), numbers, known, 5)
    assert found == ["B", "C", "SMALL"]
    assert table.topic_configs == {
        "A": TopicConfig("A", 8, 8, 4),
        "B": TopicConfig("B", 5, 5, 2),
        "C": TopicConfig("C", 2, 2, READ_WRITE),
        "SMALL": TopicConfig("SMALL", 4, 4, 7),
    }
    same, none = completed_topics(table, {"A": 8}, known, 9)
    assert (same, none) == (table, [])
    groups, none = completed_groups(SubscriptionGroupTable(), ["TOOLS_CONSUMER"], 9)
    assert (groups, none) == (SubscriptionGroupTable(), [])


def test_foreign_directories_name_no_queues(tmp_path: Path) -> None:
    for name in ("T/0", "T/3", "T/x", "T/99999999999", "T/-1", "T/٣", "empty"):
        (tmp_path / "consumequeue" / name).mkdir(parents=True)
    (tmp_path / "consumequeue" / "file").write_text("")
    bad = b"\xff"
    (Path(str(tmp_path)) / "consumequeue" / bad.decode("utf-8", "surrogateescape") / "0").mkdir(
        parents=True
    )
    traces = StoreTraces(RealDisk(), str(tmp_path / "config" / "topics.json"))
    assert traces.queue_numbers() == {"T": 4}
    assert traces.groups() == set()
