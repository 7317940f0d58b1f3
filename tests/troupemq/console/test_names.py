"""Names are offered in a useful order, and unknown ones are rejected with similar ones."""

import pytest

from protocol.topic_names import DLQ_TOPIC_PREFIX
from troupemq.client.admin import BrokerPlace
from troupemq.console.names import GROUPS, OFFERED_MAX, TOPICS, missing_name, offered
from troupemq.console.snapshot import BrokerSummary, ClusterSnapshot, TopicSummary

NAMES = ["Bills", "Orders", "Old-orders", "Ordinary", f"{DLQ_TOPIC_PREFIX}Orders"]


@pytest.fixture
def now() -> ClusterSnapshot:
    place = BrokerPlace("C", "b", 0, "127.0.0.1:1")
    found = ClusterSnapshot(brokers=[BrokerSummary(place, {"putTps": "1"})])
    found.topics = {name: TopicSummary(name) for name in NAMES}
    return found


def test_names_that_begin_with_the_text_come_first() -> None:
    assert offered(NAMES, "ORD") == ["Orders", "Ordinary", "Old-orders"]
    assert offered(NAMES, "%dlq%o") == [f"{DLQ_TOPIC_PREFIX}Orders"]
    assert (
        offered([f"t-{n}" for n in range(99)], "")
        == sorted(f"t-{n}" for n in range(99))[:OFFERED_MAX]
    )


@pytest.mark.parametrize(
    ("name", "near"),
    [("orders", "Orders or Old-orders"), ("Order", "Old-orders"), ("Ordersss", "Orders")],
)
def test_an_unknown_name_is_rejected_with_similar_ones(
    now: ClusterSnapshot, name: str, near: str
) -> None:
    why = missing_name(now, TOPICS, name)
    assert why.startswith(f"Topic {name} not found") and near in why


def test_a_name_is_accepted_if_it_is_known_or_may_be_known_elsewhere(now: ClusterSnapshot) -> None:
    assert missing_name(now, TOPICS, "Orders") == missing_name(now, TOPICS, "") == ""
    assert missing_name(now, GROUPS, "shop") == "Group shop not found at any broker"
    now.missing.append("127.0.0.1:2 did not answer")
    assert missing_name(now, TOPICS, "Nowhere") == ""
