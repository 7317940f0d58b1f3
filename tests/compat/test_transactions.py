"""Official transaction producers: every outcome, check-backs, what is given up, another's store.

Each case runs against a broker that checks every second; what consumers get is compared with what
the official broker hands out in the same case.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.compat.agent import Agent, Event, closing, go_client, java_agent
from tests.compat.conftest import SERVER_KIND, MakeBroker, MakeNameServer, wait_for_route
from tests.compat.corpus import SERIAL, Outgoing
from tests.compat.patience import wait_until
from tests.compat.servers import Broker
from tests.compat.test_store import PAIRS, exit_code_is_good
from tests.compat.toolchain import Java
from troupemq import Admin

pytestmark = pytest.mark.slow(seconds=15)

GROUP = "transactors"
CHECK_MAX = 4
OFTEN = {
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "1000",
    "transactionCheckMax": str(CHECK_MAX),
}
PATIENT = {**OFTEN, "transactionCheckMax": "90"}
MAX_TIME = "TRANS_CHECK_MAX_TIME_TOPIC"
KINDS = ("official",) if SERVER_KIND == "official" else ("official", "ours")
CLIENTS = (
    "java",
    pytest.param("java-5", marks=pytest.mark.whole),
    pytest.param("go", marks=pytest.mark.whole),
)
FOREVER = "forever"
CHECK_DEADLINE_S = 60.0
WARM_DEADLINE_S = 40.0

StartClient = Callable[[str, Path, Broker], Agent]


@pytest.fixture
def start(java_tools: Java, java_5_tools: Java, go_program: Path) -> StartClient:
    """Starts a client of a broker."""

    def start_client(client: str, scratch: Path, broker: Broker) -> Agent:
        if client == "go":
            return go_client("go", go_program, scratch, broker)
        tools = java_5_tools if client == "java-5" else java_tools
        return java_agent(client, tools, scratch, broker)

    return start_client


def transaction(serial: str, local: str, **checks: str) -> Outgoing:
    """Return a transaction: the state at the send and, by property, at each check-back."""
    properties = {"local": local, **(checks or {"checked": "unknown"})}
    return Outgoing(serial, b"body of " + serial.encode(), "TagT", f"key-{serial}", properties)


OUTCOMES = [
    transaction("commit", "commit"),
    transaction("rollback", "rollback"),
    transaction("commit-later", "unknown", checked="commit"),
    transaction("rollback-later", "unknown", checked="unknown,rollback"),
    transaction("commit-last", "unknown", checked="unknown,unknown,commit"),
    transaction(FOREVER, "unknown"),
]
DELIVERED = {"commit", "commit-later", "commit-last"}


def warm_up(agent: Agent, topic: str) -> None:
    """Until the broker knows the producer, which its client tells every 30 s at the latest."""
    sent = [0]

    def is_asked() -> bool:
        if not agent.checks():
            sent[0] += 1
            agent.transact(GROUP, topic, [transaction(f"warm-{sent[0]}", "unknown")])
        return bool(agent.checks())

    wait_until(is_asked, "a first question", WARM_DEADLINE_S)


def serials(events: list[Event]) -> list[str]:
    found = [event["properties"][SERIAL] for event in events]
    return sorted(serial for serial in found if not serial.startswith("warm"))


def everything(
    client: str,
    kind: str,
    scratch: Path,
    start: StartClient,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> tuple[list[Event], list[Event], list[Event]]:
    """Return consumed and discarded messages, and the check-backs of the producer."""
    with ExitStack() as stack:
        names = stack.enter_context(make_name_server(kind, scratch / "names"))
        broker = make_broker(kind, scratch / "broker", names)
        broker.settings = {**broker.settings, **OFTEN}
        stack.enter_context(broker)
        agent = stack.enter_context(closing(start(client, scratch, broker)))
        with Admin(broker.name_server.address) as admin:  # 5.x's client has another call
            admin.create_topic("T", 4)
        wait_for_route(broker, "T")
        agent.transact(GROUP, "T", [])
        warm_up(agent, "T")
        agent.join("member", "consumers", "T", "TagT")
        results = agent.transact(GROUP, "T", OUTCOMES)
        assert {result["status"] for result in results} == {"SEND_OK"}
        wait_until(lambda: len(serials(agent.received("member"))) >= len(DELIVERED), "commits")
        wait_for_route(broker, MAX_TIME)
        agent.join("undertaker", "undertakers", MAX_TIME)
        wait_until(
            lambda: FOREVER in serials(agent.received("undertaker")),
            "the message that is given up",
            CHECK_DEADLINE_S,
        )
        for member in ("member", "undertaker"):
            agent.leave(member)
        return agent.received("member"), agent.received("undertaker"), agent.checks()


def shape(event: Event) -> dict[str, Any]:
    """Return the parts of a message that depend only on the send."""
    properties = dict(event["properties"])
    for name in ("UNIQ_KEY", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"):
        properties.pop(name, None)
    properties.pop("REAL_QID", None)
    return {
        **{name: event[name] for name in ("topic", "body", "tags", "keys", "flag", "sysFlag")},
        "storeSize": event["storeSize"] - len(event["properties"].get("UNIQ_KEY", "")),
        "reconsumeTimes": event["reconsumeTimes"],
        "properties": properties,
        "is prepared": event["preparedTransactionOffset"] > 0,
    }


def shapes(events: list[Event]) -> dict[str, dict[str, Any]]:
    """Return the shapes by serial; each occurs once."""
    kept = [event for event in events if not event["properties"][SERIAL].startswith("warm")]
    by_serial = {event["properties"][SERIAL]: shape(event) for event in kept}
    assert len(by_serial) == len(kept)
    return by_serial


@pytest.mark.parametrize("client", CLIENTS)
def test_every_outcome_equals_that_of_the_official_broker(
    client: str,
    tmp_path: Path,
    start: StartClient,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> None:
    found = {}
    for kind in KINDS:
        received, given_up, checks = everything(
            client, kind, tmp_path / kind, start, make_name_server, make_broker
        )
        assert set(serials(received)) == DELIVERED
        assert serials(given_up) == [FOREVER]
        asked = [
            (each["serial"], each["outcome"], each["times"])
            for each in checks
            if not each["serial"].startswith("warm")
        ]
        assert {(serial, times) for serial, _, times in asked} == {
            ("commit-later", "1"),
            ("rollback-later", "1"),
            ("rollback-later", "2"),
            *(("commit-last", f"{times}") for times in (1, 2, 3)),
            *((FOREVER, f"{times}") for times in range(1, CHECK_MAX + 1)),
        }
        assert {each["topic"] for each in checks} == {"T"}
        found[kind] = shapes(received), shapes(given_up), sorted(set(asked))
    assert all(each == found[KINDS[0]] for each in found.values())


@pytest.mark.parametrize("first, second", PAIRS)
def test_a_broker_settles_transactions_that_another_left_open(
    first: str,
    second: str,
    tmp_path: Path,
    start: StartClient,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> None:
    """Some were ended there, some checked, some not even that; every commit comes once."""
    early_ones = [
        transaction("commit", "commit"),
        transaction("rollback", "rollback"),
        transaction("asked", "unknown", early="unknown", late="commit"),
        transaction("committed-asked", "unknown", early="commit", late="rollback"),
        transaction("asked-in-vain", "unknown", early="unknown", late="rollback"),
    ]
    last_one = transaction("unasked", "unknown", early="unknown", late="unknown,commit")
    with (
        make_name_server(first, tmp_path / "names") as names,
        make_broker(
            first, tmp_path / "left", names, **{**OFTEN, "transactionCheckMax": "90"}
        ) as left,
        closing(start("java", tmp_path, left)) as early,
    ):
        early.create_topic("T", 4)
        wait_for_route(left, "T")
        early.transact(GROUP, "T", [], "early")
        early.transact(GROUP, "T", early_ones, "early")
        wait_until(lambda: len(asked_in(early, "early")) == 3, "questions", CHECK_DEADLINE_S)
        early.transact(GROUP, "T", [last_one], "early")
        early.join("member", "early", "T")
        wait_until(lambda: len(early.received("member")) == 2, "the first commits")
        early.close()
        assert exit_code_is_good(left, left.stop()), left.child.last_words()
    with (
        make_name_server(second, tmp_path / "new-names") as names,
        make_broker(second, tmp_path / "new", names, left.store, **PATIENT) as new,
        closing(start("java", tmp_path / "new", new)) as late,
    ):
        wait_for_route(new, "T")
        late.transact(GROUP, "T", [], "late")
        late.join("member", "late", "T")
        wanted = {"commit", "committed-asked", "asked", "unasked"}
        wait_until(lambda: set(serials(late.received("member"))) >= wanted, "all commits")
        wait_until(lambda: "asked-in-vain" in asked_in(late, "late"), "the last question")
        late.transact(GROUP, "T", [transaction("after", "commit")], "late")
        wait_until(lambda: "after" in serials(late.received("member")), "a new one")
        assert serials(late.received("member")) == sorted({*wanted, "after"})
        assert asked_in(late, "late") == {"asked", "unasked", "asked-in-vain"}


def asked_in(agent: Agent, reads: str) -> set[str]:
    return {event["serial"] for event in agent.checks(reads)}
