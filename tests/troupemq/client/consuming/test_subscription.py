"""Tests of subscriptions: tags and SQL92 expressions, and the warnings about suspicious ones."""

import pytest

from troupemq.client.consuming.subscription import SQL92, TAG, TopicSubscription
from troupemq.client.errors import MessageIllegal


def test_a_subscription_is_by_tags_or_by_sql() -> None:
    by_tags = TopicSubscription.of("T", "b || a", None, 7)
    assert (by_tags.expression_type, by_tags.filter.tags) == (TAG, frozenset("ab"))
    data = by_tags.data()
    assert (data.tags_set, data.sub_version, data.sub_string) == (["a", "b"], 7, "b || a")
    by_sql = TopicSubscription.of("T", "*", "amount > 1", 7)
    assert (by_sql.expression_type, by_sql.expression) == (SQL92, "amount > 1")
    with pytest.raises(MessageIllegal, match="not by both"):
        TopicSubscription.of("T", "a", "amount > 1", 7)


def test_suspicious_tags_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    TopicSubscription.of("T", "a || b", None, 7).warn_of_doubts("g")
    assert caplog.text == ""
    TopicSubscription.of("T", "a, b", None, 7).warn_of_doubts("g")
    assert "suspicious tag subscribed group=g topic=T tag='a, b'" in caplog.text
    assert "did you mean 'a || b'?" in caplog.text


@pytest.mark.parametrize("expression", [" ", "|| ||", "\t||"])
def test_blanks_between_bars_passed_all_messages_over(expression: str) -> None:
    with pytest.raises(MessageIllegal, match="names no tag: '\\*' is all messages"):
        TopicSubscription.of("T", expression, None, 7)


def test_the_hint_for_a_star_among_tags_does_not_lead_to_the_next_hint() -> None:
    ((_, hint),) = TopicSubscription.of("T", "*|a", None, 7).doubts()
    assert hint == "tags have no wildcards: '*' alone is all"
