"""A name server restarts, and the first registration that it gets is that of a single topic."""

from pathlib import Path

import pytest

from tests.compat import servers
from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.patience import wait_until
from tests.compat.remoting import SUCCESS, exchange, has_route
from tests.compat.servers import free_port

UPDATE_AND_CREATE_TOPIC = 17
TOPICS = "ABCDE"
OFFICIAL_NAMES = pytest.param("official", "ours", marks=pytest.mark.whole)


@pytest.mark.parametrize(("name_kind", "broker_kind"), [("ours", "official"), OFFICIAL_NAMES])
def test_a_restarted_name_server_gets_all_topics_although_one_arrives_first(
    name_kind: str,
    broker_kind: str,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """4.9.7's broker registers the topic that is updated alone, with the version of its table."""

    def update_topic(topic: str) -> None:
        fields = {"topic": topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        fields |= dict.fromkeys(("readQueueNums", "writeQueueNums"), "4") | {"perm": "6"}
        assert exchange(broker.address, UPDATE_AND_CREATE_TOPIC, fields).code == SUCCESS

    port = free_port()
    name_server = make_name_server(name_kind, tmp_path / "names")
    name_server.settings["listenPort"] = str(port)
    with monkeypatch.context() as patched:
        patched.setattr(servers, "free_port", lambda: port)
        name_server.start()
    broker = make_broker(
        broker_kind, tmp_path / "broker", name_server, registerNameServerPeriod="10000"
    )
    try:
        with broker:
            for topic in TOPICS:
                update_topic(topic)
            name_server.stop()
            with monkeypatch.context() as patched:
                patched.setattr(servers, "free_port", lambda: port)
                name_server.start()
            update_topic("F")
            wait_until(lambda: has_route(name_server.address, "F"), "the one topic is known")
            for topic in TOPICS:
                wait_until(lambda topic=topic: has_route(name_server.address, topic), topic)  # type: ignore[misc]
    finally:
        name_server.stop()
