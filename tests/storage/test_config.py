"""The settings of a store."""

from dataclasses import FrozenInstanceError

import pytest

from storage.config import StoreConfig, keys_of
from storage.errors import StoreError


def test_the_defaults_are_those_of_the_original() -> None:
    config = StoreConfig(root="/store")
    assert config.commit_log_file_bytes == 1_073_741_824
    assert config.consume_queue_file_bytes == 6_000_000
    assert (config.max_hash_slots, config.max_index_entries) == (5_000_000, 20_000_000)
    assert (config.flush_interval_ms, config.flush_thorough_interval_ms) == (500, 10_000)
    assert config.flush_disk_type == "ASYNC_FLUSH"


def test_directories_default_to_paths_below_the_root() -> None:
    assert StoreConfig(root="/store").commit_log_dir == "/store/commitlog"
    config = StoreConfig(root="/store", commit_log_dir="/fast/log")
    assert config.commit_log_dir == "/fast/log"
    assert config.consume_queue_dir == "/store/consumequeue"
    assert config.lock_path == "/store/lock"


@pytest.mark.parametrize("path", ["~/store", "${user.home}/store", "$HOME/store"])
def test_a_path_that_a_shell_would_replace_made_a_folder_of_that_name(path: str) -> None:
    """The next start, in another folder, had an empty store."""
    with pytest.raises(StoreError, match=r"storePathRootDir is .*: write the whole path, for nei"):
        StoreConfig(root=path)
    with pytest.raises(StoreError, match=r"storePathCommitLog is .*: write the whole path, for n"):
        StoreConfig(commit_log_dir=path)


def test_queue_files_hold_whole_units() -> None:
    assert StoreConfig(consume_queue_file_bytes=6001).consume_queue_file_bytes == 6020


def test_each_key_fills_one_field() -> None:
    keys = keys_of(StoreConfig)
    assert keys["mappedFileSizeCommitLog"] == "commit_log_file_bytes"
    assert keys["storePathRootDir"] == "root"
    assert "mapedFileSizeCommitLog" not in keys
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"commit_log_dir": "/a,/b"}, "names several directories"),
        ({"commit_log_file_bytes": 0}, "mappedFileSizeCommitLog must be greater than 0"),
        (
            {"commit_log_file_bytes": 1 << 31},
            "mappedFileSizeCommitLog is 2147483648: it must be at",
        ),
        ({"consume_queue_file_bytes": (1 << 63) - 1}, "mappedFileSizeConsumeQueue is 92233720368"),
        ({"flush_interval_ms": 0}, "flushIntervalCommitLog must be greater than 0"),
        ({"flush_queue_interval_ms": -1}, "flushIntervalConsumeQueue must be greater than 0"),
        ({"flush_delay_offset_interval_ms": 0}, "flushDelayOffsetInterval must be greater than 0"),
        ({"max_index_entries": 0}, "maxIndexNum must be greater than 0"),
        ({"max_index_entries": 1}, "maxIndexNum must be 2 or more"),
        ({"flush_disk_type": "SOMETIMES"}, "use ASYNC_FLUSH or SYNC_FLUSH"),
        ({"message_delay_level": "1s 5x"}, "messageDelayLevel is 1s 5x: 5x is not a number"),
        ({"message_delay_level": "1s -5s"}, "messageDelayLevel is 1s -5s: -5s is not a number"),
        ({"message_delay_level": " "}, "messageDelayLevel is empty"),
        ({"message_delay_level": "1s 5"}, "messageDelayLevel is 1s 5: 5 is not a number"),
        ({"max_message_bytes": -1}, "maxMessageSize must be greater than 0"),
        ({"file_reserved_hours": -1}, "fileReservedTime is -1: it must not be less than 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(StoreError, match=sentence):
        StoreConfig(**settings)  # type: ignore[arg-type]


def test_a_configuration_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        StoreConfig().root = "/other"  # type: ignore[misc]
