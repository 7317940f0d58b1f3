"""Tests of actors/pulling/pull_rules.py: pulls behind the end of their queue."""

from structlog.testing import capture_logs

from protocol.codes import ResponseCode
from tests.support.numbering import broker, commit, pulled, send_many


def test_a_live_group_above_the_max_offset_continues_at_its_offset() -> None:
    """After the broker has lost the end of its log, later messages are not skipped."""
    made = broker()
    made.make_topic()
    made.subscribe()
    send_many(made, 50)
    commit(made, 20)
    with capture_logs() as lines:
        assert pulled(made, 99) == (ResponseCode.PULL_OFFSET_MOVED, [], 20)
    (line,) = [each for each in lines if each["event"] == "pull offset moved"]
    assert (line["log_level"], line["offset"], line["moved_to"]) == ("warning", 99, 20)


def test_a_live_group_without_an_offset_starts_a_young_queue_at_its_first_message() -> None:
    made = broker()
    made.make_topic()
    made.subscribe()
    send_many(made, 30)
    assert pulled(made, 99) == (ResponseCode.PULL_OFFSET_MOVED, [], 0)
