"""Names that topics and groups may have, and the texts that refuse others."""

import pytest

from protocol.topic_names import (
    REFUSED_TOPICS,
    SYSTEM_TOPICS,
    group_name_fault,
    is_legal_name,
    is_system_topic,
    topic_name_fault,
)

PATTERN = "^[%|a-zA-Z0-9_-]+$"


@pytest.mark.parametrize("name", ["T", "a_b-c", "%RETRY%g", "NS%T", "a|b", "0", "x" * 127])
def test_names_of_letters_digits_and_some_signs_are_legal(name: str) -> None:
    assert is_legal_name(name) and not topic_name_fault(name) and not group_name_fault(name)


@pytest.mark.parametrize("name", ["a b", "a/b", "../a", "a.b", "a\n", "ä", "a\0"])
def test_names_with_a_meaning_to_a_file_system_are_illegal(name: str) -> None:
    assert not is_legal_name(name)
    fault = f"The specified topic contains illegal characters, allowing only {PATTERN}"
    assert topic_name_fault(name) == fault
    fault = f"the specified group[{name}] contains illegal characters, allowing only {PATTERN}"
    assert group_name_fault(name) == fault


def test_empty_and_too_long_names_are_illegal() -> None:
    assert topic_name_fault(" ") == topic_name_fault("") == "The specified topic is blank."
    long = "The specified topic is longer than topic max length."
    assert topic_name_fault("x" * 128) == long and not is_legal_name("x" * 128)
    assert not group_name_fault("x" * 255)
    assert "longer than group max length 255." in group_name_fault("x" * 256)
    assert group_name_fault("")


def test_topics_closed_to_sends_cannot_be_changed() -> None:
    assert REFUSED_TOPICS < SYSTEM_TOPICS and all(map(is_legal_name, SYSTEM_TOPICS))


@pytest.mark.parametrize(
    ("topic", "is_system"),
    [
        ("orders", False),
        ("%DLQ%group", False),
        ("BenchmarkTest", False),
        ("%RETRY%group", True),
        ("SCHEDULE_TOPIC_XXXX", True),
        ("RMQ_SYS_TRANS_HALF_TOPIC", True),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", True),
        ("TBW102", True),
    ],
)
def test_dead_letter_topics_are_open_to_users_and_retry_topics_are_not(
    topic: str, is_system: bool
) -> None:
    assert is_system_topic(topic) == is_system
