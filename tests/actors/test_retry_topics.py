"""When the retry topic of a group is made, as consumers see it."""

from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from tests.actors.test_clients import consumer, subscription
from tests.support.brokers import SimulatedBroker


def test_a_heartbeat_is_answered_once_the_retry_topic_is_there() -> None:
    """With the answer the client asks for its route; when it is too early, it waits 30 s."""
    made = SimulatedBroker(3)
    topics: list[bool] = []
    made.client.start(
        RemotingCommand(
            RequestCode.HEART_BEAT, body=consumer("c", subscription("T"), group="new").encode()
        ),
        lambda _: topics.append("%RETRY%new" in made.broker.tables.topics.value),
    )
    made.system.advance(100)
    assert topics == [True]
    made.stop()
