"""Items that wait for topics: in order, one request per topic, limited in number."""

from actors.sending.internal_append import TopicWaitList
from actors.tables.messages import CreateSystemTopic
from tests.support.peers import Told


def test_a_topic_is_requested_once_and_returns_its_items_in_order() -> None:
    topics = Told("topics")
    parking: TopicWaitList[int] = TopicWaitList(topics.address)
    for number in range(3):
        assert parking.park(number, CreateSystemTopic("New", 1))
    assert parking.park(9, CreateSystemTopic("Other", 1))
    assert [each.topic for each in topics.take()] == ["New", "Other"]
    assert "New" in parking
    assert [*parking.release("New")] == [0, 1, 2]
    assert "New" not in parking and "Other" in parking
    assert [*parking.release("New")] == []
    assert parking.park(3, CreateSystemTopic("New", 1))
    assert [each.topic for each in topics.take()] == ["New"]


def test_waiters_for_one_topic_are_limited() -> None:
    topics = Told("topics")
    parking: TopicWaitList[int] = TopicWaitList(topics.address, 2)
    assert [parking.park(number, CreateSystemTopic("New", 1)) for number in range(3)] == [
        True,
        True,
        False,
    ]
    assert parking.park(3, CreateSystemTopic("Other", 1))
    assert [*parking.release("New")] == [0, 1]


def test_all_waiting_items_are_returned_at_the_end() -> None:
    parking: TopicWaitList[int] = TopicWaitList(Told("topics").address)
    for number, topic in enumerate(("A", "B", "A")):
        parking.park(number, CreateSystemTopic(topic, 1))
    assert sorted(parking.release_all()) == [0, 1, 2]
    assert [*parking.release_all()] == []
    assert "A" not in parking
