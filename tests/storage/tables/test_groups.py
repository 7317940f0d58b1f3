"""subscriptionGroup.json, as the original writes it."""

from pathlib import Path

import pytest

from protocol.bodies_tables import SubscriptionGroupConfig
from protocol.topic_names import ALWAYS_PRESENT
from storage.tables.groups import always_present, format_groups, parse_groups
from tests.support.by_hand import BY_HAND
from tests.support.golden import store

TEXT = """{
	"dataVersion":{
		"counter":1,
		"timestamp":1795189494018
	},
	"subscriptionGroupTable":{
		"G":{
			"brokerId":0,
			"consumeBroadcastEnable":true,
			"consumeEnable":false,
			"consumeFromMinEnable":true,
			"groupName":"G",
			"notifyConsumerIdsChangedEnable":true,
			"retryMaxTimes":5,
			"retryQueueNums":1,
			"whichBrokerWhenConsumeSlowly":1
		}
	}
}"""


def test_a_table_has_the_json_form_of_the_original() -> None:
    table = parse_groups(TEXT)
    assert table.subscription_group_table == {
        "G": SubscriptionGroupConfig("G", consume_enable=False, retry_max_times=5)
    }
    assert (table.data_version.counter, table.data_version.timestamp) == (1, 1795189494018)
    assert format_groups(table) == TEXT


@pytest.mark.parametrize("name", ["clean", "slave", "ext", "v6", "torn-recovered", BY_HAND])
def test_files_of_the_original_are_rewritten_byte_for_byte(name: str, tmp_path: Path) -> None:
    path = store(name, tmp_path, "config") / "config" / "subscriptionGroup.json"
    text = path.read_text(encoding="utf-8")
    assert format_groups(parse_groups(text)) == text


def test_system_groups_are_those_of_the_original(tmp_path: Path) -> None:
    path = store("clean", tmp_path, "config") / "config" / "subscriptionGroup.json"
    theirs = parse_groups(path.read_text(encoding="utf-8")).subscription_group_table
    assert len(always_present()) == len(ALWAYS_PRESENT) == 7
    for group in always_present():
        assert theirs[group.group_name] == group
