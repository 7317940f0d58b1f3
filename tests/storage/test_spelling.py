"""Tests of storage/spelling.py: what is close to a known name, and what is not."""

import pytest

from actors.settings.known_keys import BROKER_FILE_KEYS
from storage.spelling import NAME_CHARS_MAX, closest, did_you_mean


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("flushDiskTyp", "flushDiskType"),
        ("flushdisktype", "flushDiskType"),
        ("flush_disk_type", "flushDiskType"),
        ("fulshDiskType", "flushDiskType"),
        ("flush-disk-types", "flushDiskType"),
        ("enableAcl", "aclEnable"),
        ("autoCreateTopic", "autoCreateTopicEnable"),
        ("brokerIP", "brokerIP1"),
        ("namesrvAddress", "namesrvAddr"),
        ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog"),
        ("timerWheelEnable", None),
        ("totalReplicas", None),
        ("x", None),
        ("", None),
        ("a" * 1_000_000, None),
        ("flushDiskType" + "e" * NAME_CHARS_MAX, None),
    ],
)
def test_misspelled_settings_are_recognized_and_foreign_ones_are_not(
    written: str, meant: str | None
) -> None:
    assert closest(written, BROKER_FILE_KEYS) == meant


def test_every_setting_is_recognized_with_its_last_letter_missing() -> None:
    wrong = {
        name: found
        for name in BROKER_FILE_KEYS
        if len(name) > 5 and (found := closest(name[:-1], BROKER_FILE_KEYS)) is None
    }
    assert wrong == {}


def test_an_unknown_name_gets_a_suggestion_or_the_list_of_names() -> None:
    assert did_you_mean("arhive", ["archive", "audit"]) == "did you mean archive?"
    assert did_you_mean("mow", ["archive", "audit"], "there is archive") == "there is archive"
