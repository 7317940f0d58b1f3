"""topics.json, as the original writes it."""

from pathlib import Path

import pytest

from protocol.bodies_tables import DataVersion, TopicConfig, TopicConfigTable
from storage.tables.topics import always_present, format_topics, parse_topics
from tests.support.by_hand import BY_HAND
from tests.support.golden import store

TEXT = """{
	"dataVersion":{
		"counter":3,
		"timestamp":1795189509189
	},
	"topicConfigTable":{
		"T":{
			"order":true,
			"perm":4,
			"readQueueNums":3,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"T",
			"topicSysFlag":1,
			"writeQueueNums":2
		}
	}
}"""


def test_a_table_has_the_json_form_of_the_original() -> None:
    table = parse_topics(TEXT)
    version = DataVersion(1795189509189, 3)
    assert table == TopicConfigTable(
        {"T": TopicConfig("T", 3, 2, 4, topic_sys_flag=1, order=True)}, version
    )
    assert format_topics(table) == TEXT


@pytest.mark.parametrize("name", ["clean", "slave", "ext", "v6", "torn-recovered", BY_HAND])
@pytest.mark.parametrize("file", ["topics.json", "topics.json.bak"])
def test_files_of_the_original_are_rewritten_byte_for_byte(
    name: str, file: str, tmp_path: Path
) -> None:
    text = (store(name, tmp_path, "config") / "config" / file).read_text(encoding="utf-8")
    assert format_topics(parse_topics(text)) == text


def test_system_topics_are_those_of_the_original(tmp_path: Path) -> None:
    text = (store("clean", tmp_path, "config") / "config" / "topics.json").read_text(
        encoding="utf-8"
    )
    theirs = parse_topics(text).topic_configs
    cluster = next(name for name in theirs if name.endswith("_REPLY_TOPIC")).partition("_")[0]
    broker = next(
        name for name, topic in theirs.items() if topic.perm == 7 and topic.read_queue_nums == 1
    )
    for topic in always_present(cluster, broker):
        assert theirs[topic.topic_name] == topic


def test_settings_enable_some_system_topics() -> None:
    every = always_present(
        "C",
        "b",
        auto_create_topic_enable=False,
        cluster_topic_enable=False,
        broker_topic_enable=False,
        trace_topic="TRACE",
    )
    topics = {topic.topic_name: topic for topic in every}
    assert "TBW102" not in topics
    assert (topics["C"].perm, topics["b"].perm) == (1, 1)
    assert topics["TRACE"] == TopicConfig("TRACE", 1, 1)
    plain = {topic.topic_name: topic for topic in always_present("C", "b")}
    assert plain["TBW102"] == TopicConfig("TBW102", 8, 8, 7)
    assert plain["BenchmarkTest"].read_queue_nums == 1024
    assert plain["SCHEDULE_TOPIC_XXXX"].write_queue_nums == 18
    assert (plain["C"].read_queue_nums, plain["C"].perm) == (16, 7)
    assert plain["C_REPLY_TOPIC"] == TopicConfig("C_REPLY_TOPIC", 1, 1)
    assert "RMQ_SYS_TRACE_TOPIC" not in plain
