"""Master and slave, ours and the official one in either place: one log, one set of tables.

Both ways with an ASYNC_MASTER and with a SYNC_MASTER; then the master is stopped, and a consumer
reads everything from the slave.
"""

from pathlib import Path
from typing import Any

import pytest

from protocol.codes import RequestCode
from protocol.fastjson import loads
from tests.compat.agent import Agent, closing, java_agent
from tests.compat.conftest import SERVER_KIND, MakeBroker, MakeNameServer, wait_for_route
from tests.compat.corpus import Outgoing, varied
from tests.compat.patience import wait_until
from tests.compat.remoting import SUCCESS, ask
from tests.compat.servers import Broker
from tests.compat.toolchain import Java

pytestmark = pytest.mark.slow(seconds=13)

COUNT = 60
FOLLOW_DEADLINE_S = 60.0
"""An official slave is silent for a while, and asks for the tables every 10 s."""

MIXED = [
    ("ours", "official", "SYNC_MASTER"),
    ("official", "ours", "ASYNC_MASTER"),
    pytest.param("ours", "official", "ASYNC_MASTER", marks=pytest.mark.whole),
    pytest.param("official", "ours", "SYNC_MASTER", marks=pytest.mark.whole),
    pytest.param("ours", "ours", "ASYNC_MASTER", marks=pytest.mark.whole),
    pytest.param("ours", "ours", "SYNC_MASTER", marks=pytest.mark.whole),
]
ALIKE = [("official", "official", "ASYNC_MASTER"), ("official", "official", "SYNC_MASTER")]
CASES = ALIKE if SERVER_KIND == "official" else MIXED
TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
)
QUICK = {"haSendHeartbeatInterval": "1000", "registerNameServerPeriod": "10000"}


def log_of(broker: Broker) -> dict[str, bytes]:
    """The files of a commit log that have anything in them."""
    files = {path.name: path.read_bytes() for path in (broker.store / "commitlog").iterdir()}
    return {name: data for name, data in files.items() if data.count(0) < len(data)}


def table_of(broker: Broker, code: RequestCode) -> Any:
    answered, body = ask(broker.address, code)
    assert answered == SUCCESS, f"{code.name}: {answered}"
    return loads(body)


def delays_of(slave: Broker) -> Any:
    """A slave of 4.9.7 keeps them in the file alone; None before it has taken any.

    One of ours also notes where copies of its master's first timers may begin: in its own log.
    """
    path = slave.store / "config" / "delayOffset.json"
    found = loads(path.read_bytes()) if path.exists() else None
    if isinstance(found, dict):
        timers_from = found.pop("timersFrom", 0)
        assert 0 <= timers_from <= sum(map(len, log_of(slave).values()))
    return found


def until_followed(client: Agent, topic: str) -> int:
    """Sends until a SYNC_MASTER says that its slave has the message too; returns how often."""
    tried = 0

    def is_followed() -> bool:
        nonlocal tried
        tried += 1
        sent = client.send("sync", topic, [Outgoing("first", b"is there a slave?")])
        return bool(sent.results[0]["status"] == "SEND_OK")

    wait_until(is_followed, "a slave that follows", FOLLOW_DEADLINE_S)
    return tried


@pytest.mark.parametrize("first, second, role", CASES)
def test_a_slave_has_its_masters_log_and_tables_and_serves_without_it(
    first: str,
    second: str,
    role: str,
    java_tools: Java,
    tmp_path: Path,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> None:
    with (
        make_name_server(first, tmp_path / "names") as names,
        make_broker(first, tmp_path / "master", names, brokerRole=role, **QUICK) as master,
        make_broker(
            second, tmp_path / "slave", names, brokerRole="SLAVE", brokerId="1", **QUICK
        ) as slave,
    ):
        with closing(java_agent("client", java_tools, tmp_path, master)) as client:
            client.create_topic("T", 4)
            wait_for_route(master, "T")
            count = until_followed(client, "T") if role == "SYNC_MASTER" else 0
            sent = [client.send(way, "T", varied(way, COUNT)) for way in ("sync", "batch")]
            delayed = [Outgoing("later", b"later", delay_level=1)]
            sent.append(client.send("sync", "T", delayed))
            statuses = {result["status"] for each in sent for result in each.results}
            assert statuses == {"SEND_OK"}
            count += sum(len(each.messages) for each in sent)
            client.join("member", "G", "T")
            wait_until(lambda: len(client.received("member")) == count, "all of them")
            client.leave("member")
        wait_until(lambda: log_of(slave) == log_of(master), "equal logs", FOLLOW_DEADLINE_S)

        for code in TABLES:
            wait_until(
                lambda: table_of(slave, code) == table_of(master, code),  # noqa: B023
                f"equal tables by {code.name}",
                FOLLOW_DEADLINE_S,
            )
        delays = table_of(master, RequestCode.GET_ALL_DELAY_OFFSET)
        wait_until(lambda: delays_of(slave) == delays, "equal delays", FOLLOW_DEADLINE_S)
        received = client.received("member")
        master.stop()
        with closing(java_agent("late", java_tools, tmp_path, slave)) as late:
            late.join("reader", "late-G", "T")
            wait_until(
                lambda: len(late.received("reader")) >= count,
                "all of it from the slave",
                FOLLOW_DEADLINE_S,
            )
            late.leave("reader")
            found = {(event["queueId"], event["queueOffset"]) for event in late.received("reader")}
            assert found == {(event["queueId"], event["queueOffset"]) for event in received}
