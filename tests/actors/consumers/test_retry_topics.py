"""Creation of retry topics, and when members of the group are notified."""

import pytest

from actors.engine.actor import Actor, handles
from actors.engine.interfaces import System
from actors.engine.supervisor import ChildSpec
from actors.naming.messages import BarrierForRegistrations, Listening
from actors.naming.namesrv_link import NamesrvLink
from actors.naming.registration import SENT_WITHIN_MS
from actors.tables.messages import RegisterAll
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import NotifyConsumerIdsChangedHeader
from tests.actors.consumers.test_clients import consumer
from tests.support.brokers import SimulatedBroker, subscription
from tests.support.registering import REGISTER, FakeNamesrv, register_at, registered

HEART_BEAT, CHANGED = RequestCode.HEART_BEAT, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
NAMESRV = "n1:9876"
RETRY_TOPIC = "%RETRY%new"


class _Silent(Actor):
    """Link to a name server that accepts connections and never answers."""

    @handles(Listening)
    def on_listening(self, _: Listening) -> None:
        """Leave the message unanswered."""

    @handles(RegisterAll)
    def on_register_all(self, _: RegisterAll) -> None:
        """Leave the message unanswered."""

    @handles(BarrierForRegistrations)
    def on_say_when_sent(self, _: BarrierForRegistrations) -> None:
        """Leave the message unanswered."""


def new_group(filtering: bool = False) -> RemotingCommand:
    wanted = subscription("T")
    if filtering:
        wanted.expression_type, wanted.sub_string = "SQL92", "a > 1"
    return RemotingCommand(HEART_BEAT, body=consumer("c", wanted, group="new").encode())


def changes(made: SimulatedBroker) -> list[str]:
    """Return the groups in the client's notices."""
    found = [each for each in made.client.received if each.code == CHANGED]
    return [NotifyConsumerIdsChangedHeader.decode(each.fields).consumer_group for each in found]


def test_a_heartbeat_is_answered_after_the_retry_topic_exists() -> None:
    """With the answer the client asks for its route; when it is too early, it waits 30 s."""
    made = SimulatedBroker(3)
    topics: list[bool] = []
    made.client.start(
        new_group(), lambda _: topics.append(RETRY_TOPIC in made.broker.tables.topics.value)
    )
    made.system.advance(100)
    assert topics == [True]
    assert changes(made) == ["new"]


@pytest.mark.parametrize("filtering", [False, True], ids=["by tags", "by properties"])
def test_the_retry_topic_is_registered_before_consumers_are_notified(
    filtering: bool,
) -> None:
    """Otherwise a Java client divides the queues without it, and then for 20 s not again."""
    made, namesrv, seen = SimulatedBroker(3), FakeNamesrv(NAMESRV), list[str]()

    def link(system: System) -> NamesrvLink:
        table, to = made.broker.tables.topic_table, system.address("registration")
        return NamesrvLink(
            made.config, NAMESRV, table=table, registration=to, connect=lambda _: namesrv
        )

    def noting(request: RemotingCommand, **_: object) -> None:
        table = registered(request).topic_config_table
        if request.code == REGISTER and RETRY_TOPIC in table.topic_configs:
            seen.append(f"registered {changes(made)}")

    register_at(made, ChildSpec("link", link))
    namesrv.send = noting  # type: ignore[method-assign]
    made.client.start(new_group(filtering), lambda _: seen.append("answered"))
    made.system.advance(100)
    assert changes(made) == ["new"]
    assert "registered []" in seen
    if not filtering:  # with filters the answer comes when pulls know these
        assert seen == ["registered []", "answered"]
    made.client.start(new_group(filtering))
    made.system.advance(100)
    assert changes(made) == ["new"], "nothing has changed"
    namesrv.send = FakeNamesrv(NAMESRV).send  # type: ignore[method-assign]


def test_a_slow_name_server_does_not_delay_consumers() -> None:
    made = SimulatedBroker(3)
    register_at(made, ChildSpec("link", lambda _: _Silent()))
    answered: list[int] = []
    made.client.start(new_group(), lambda answer: answered.append(answer.code))
    made.system.advance(SENT_WITHIN_MS - 500)
    assert (answered, changes(made)) == ([], [])
    made.system.advance(600)
    assert (answered, changes(made)) == ([0], ["new"])
