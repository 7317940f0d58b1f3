"""An administrator's new topic, and what the name servers know when that is answered."""

from structlog.testing import capture_logs

from actors.engine.actor import Actor, handles
from actors.engine.interfaces import System
from actors.engine.supervisor import ChildSpec
from actors.naming.messages import BarrierForRegistrations, Listening
from actors.naming.namesrv_link import NamesrvLink
from actors.naming.registration import SENT_WITHIN_MS
from actors.tables.messages import RegisterTopic, SetOrderTopics
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from tests.support.brokers import SimulatedBroker
from tests.support.registering import REGISTER, FakeNamesrv, register_at, registered

NAMESRV = "n1:9876"


class _Silent(Actor):
    """Link to a name server that accepts connections and never answers."""

    @handles(Listening)
    def on_listening(self, _: Listening) -> None:
        """Leave the message unanswered."""

    @handles(RegisterTopic)
    def on_register_topic(self, _: RegisterTopic) -> None:
        """Leave the message unanswered."""

    @handles(BarrierForRegistrations)
    def on_say_when_sent(self, _: BarrierForRegistrations) -> None:
        """Leave the message unanswered."""


def new_topic() -> RemotingCommand:
    header = CreateTopicHeader("New", "TBW102", 1, 1, 6, "SINGLE_TAG")
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())


def test_a_topic_creation_is_answered_after_its_registration() -> None:
    """A producer that is told so may ask for its route at once, as with 4.9.7."""
    made, namesrv, seen = SimulatedBroker(3), FakeNamesrv(NAMESRV), list[str]()

    def link(system: System) -> NamesrvLink:
        table, to = made.broker.tables.topic_table, system.address("registration")
        return NamesrvLink(
            made.config, NAMESRV, table=table, registration=to, connect=lambda _: namesrv
        )

    def noting(request: RemotingCommand, **_: object) -> None:
        if (
            request.code == REGISTER
            and "New" in registered(request).topic_config_table.topic_configs
        ):
            seen.append("registered")

    register_at(made, ChildSpec("link", link))
    namesrv.send = noting  # type: ignore[method-assign]
    made.client.start(new_topic(), lambda _: seen.append("answered"))
    made.system.advance(100)
    assert seen == ["registered", "answered"]
    namesrv.send = FakeNamesrv(NAMESRV).send  # type: ignore[method-assign]


def test_a_slow_name_server_does_not_delay_a_topic_creation() -> None:
    made = SimulatedBroker(3)
    register_at(made, ChildSpec("link", lambda _: _Silent()))
    answered: list[int] = []
    made.client.start(new_topic(), lambda answer: answered.append(answer.code))
    made.system.advance(SENT_WITHIN_MS - 500)
    assert answered == []
    made.system.advance(600)
    assert answered == [0]


def test_the_ordered_topics_line_has_their_number_and_the_first_ten() -> None:
    made = SimulatedBroker(1)
    names = [f"T{number:02}" for number in range(30)]
    for name in names:
        made.make_topic(name)
    with capture_logs() as logs:
        made.system.address("topics").tell(SetOrderTopics(frozenset(names)))
        made.system.drain()
    (line,) = [each for each in logs if each["event"] == "ordered topics changed"]
    assert (line["count"], line["topics"]) == (30, names[:10])
