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
