"""Tests of troupemq/setting_meanings.py: what each setting means is there wherever we run."""

from pathlib import Path

import pytest

from actors.config import BrokerConfig
from storage.config import StoreConfig, keys_of
from troupemq.setting_meanings import SAMPLES, broker_settings, in_words, meanings, sample


def test_a_comment_describes_the_keys_below_it() -> None:
    text = "# --- part\n\n# Both, in\n# ms.\n#a = 1\n#b = 2\n# Other.\nc = 3\n\n#d = 4\n"
    assert meanings(text) == {"a": "Both, in ms.", "b": "Both, in ms.", "c": "Other.", "d": ""}


def test_every_broker_setting_has_meaning_default_and_live_flag() -> None:
    found = broker_settings()
    assert found.keys() == {*keys_of(BrokerConfig), *keys_of(StoreConfig)}
    assert [key for key, each in found.items() if not each.words] == []
    assert found["fileReservedTime"].default == "72" and found["fileReservedTime"].is_live
    assert not found["listenPort"].is_live and found["tls.server.keyPassword"].is_secret
    assert str(Path.home()) not in found["storePathRootDir"].default


def test_a_missing_sample_file_is_empty() -> None:
    assert all(sample(name) for name in SAMPLES)
    assert sample("nothing.conf") == ""


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("mappedFileSizeCommitLog", "1073741824", "1 GiB"),
        ("flushIntervalCommitLog", "500", "500 ms"),
        ("serverChannelMaxIdleTimeSeconds", "120", "2 minutes"),
        ("fileReservedTime", "48", "2 days"),
        ("fileReservedTime", "50", "50 hours"),
        ("flushCommitLogLeastPages", "4", "16 KiB"),
        ("rocketmq.broker.diskSpaceWarningLevelRatio", "0.9", "90 %"),
        ("consolePort", "0", "off"),
        ("consolePort", "8088", ""),
        ("metricsTopicPattern", "", "all"),
        ("aclEnable", "false", "no"),
        ("brokerPermission", "6", "read and write"),
        ("brokerId", "0", "the master"),
        ("brokerName", "broker-a", ""),
        ("startAcceptSendRequestTimeStamp", "0", ""),
        ("fileReservedTime", "9" * 400, ""),
    ],
)
def test_a_value_is_said_in_plain_words_and_units(key: str, value: str, said: str) -> None:
    assert in_words(value, broker_settings()[key].words) == said
