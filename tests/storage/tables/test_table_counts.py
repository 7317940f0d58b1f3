"""A clean stop counts what the tables hold; of what is gone at the next start that is told."""

from storage.config import StoreConfig
from storage.tables.table_counts import count_entries, lost_tables
from troupemq.testing.fake_disk import FakeDisk

CONFIG = StoreConfig("/store")
TEXTS = {
    "topics.json": '{"topicConfigTable":{"A":{},"B":{}}}',
    "subscriptionGroup.json": '{"subscriptionGroupTable":{"g":{}}}',
    "consumerOffset.json": '{"offsetTable":{"A@g":{0:1},"B@g":{0:1},"A@h":{0:1}}}',
    "delayOffset.json": '{"offsetTable":{1:5}}',
    "consumerFilter.json": '{"filterDataByTopic":{"A":{"groupFilterData":{"g":{},"h":{}}},"B":1}}',
    "consumerFilter.json.bak": "{}",
    "messageRequestMode.json": '{"messageRequestModeMap":{"A":{"g":{},"h":{}},"B":{"g":{}}}}',
    "other.json": "{}",
}
COUNTS = {
    "topics.json": 2,
    "subscriptionGroup.json": 1,
    "consumerOffset.json": 2,
    "delayOffset.json": 1,
    "consumerFilter.json": 2,
    "messageRequestMode.json": 3,
}


def filled(texts: dict[str, str]) -> FakeDisk:
    disk = FakeDisk()
    disk.make_dirs(CONFIG.config_dir)
    for name, text in texts.items():
        disk.open(f"{CONFIG.config_dir}/{name}", create=True).pwrite(text.encode(), 0)
    return disk


def test_the_entries_of_every_table_are_counted() -> None:
    assert count_entries(CONFIG, filled(TEXTS)) == COUNTS
    assert count_entries(CONFIG, FakeDisk()) == {}


def test_unreadable_tables_are_not_counted() -> None:
    bad = {"topics.json": "{]", "delayOffset.json": "", "consumerOffset.json": '{"offsetTable":3}'}
    assert count_entries(CONFIG, filled(bad)) == {}


def test_a_missing_table_is_reported_with_its_former_count() -> None:
    assert lost_tables(CONFIG, filled(TEXTS), COUNTS) == []
    left = {"consumerFilter.json.bak": "{}"}
    told = [each.text for each in lost_tables(CONFIG, filled(left), {**COUNTS, "unknown": 3})]
    assert [each.split(" ", 1)[0].rpartition("/")[2] for each in told] == [
        each for each in COUNTS if each != "consumerFilter.json"
    ]
    missing = "/store/config/consumerOffset.json and its previous version are missing"
    assert told[2] == f"{missing}: the offsets of 2 groups are lost; they start like new groups"
