"""The servers and clients of the interop suite, started once each.

The suite runs when its path is named (`pytest tests/compat`, `make interop`), never as part of a
plain `pytest`. What is marked `whole` is left to `make interop-whole`: the same promise, with
another client or the other way round.
Without Java, Maven or Go it is skipped, or fails where TROUPEMQ_CI is set.
TROUPEMQ_INTEROP=official runs it against the official servers: that proves the suite itself.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from tests.compat.agent import Agent, closing, go_client, java_agent
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route
from tests.compat.servers import (
    PROPERTY_FILTER,
    SMALL_FILES,
    Broker,
    NameServer,
    OfficialBroker,
    OfficialNameServer,
    OurBroker,
    OurNameServer,
)
from tests.compat.toolchain import (
    Java,
    MissingTool,
    go_agent,
    go_tls_agent,
    java,
    java_5,
    missing,
)

HERE = Path(__file__).resolve().parent
BINARY_HEADER = "-Drocketmq.serialize.type=ROCKETMQ"
SOON_BALANCED = [
    "-Drocketmq.client.rebalance.waitInterval=1000",
    "-Drocketmq.client.rebalance.lockInterval=1000",
]
"""Rebalance interval of a Java client, which is 20 s by default, for tests without broker notices.
"""

SHORT_DELAYS_MS = (1000, 2000, 1000, 1000, 1000)
SHORT_DELAYS = {
    "traceTopicEnable": "true",
    "messageDelayLevel": " ".join(f"{ms // 1000}s" for ms in SHORT_DELAYS_MS),
}
T = TypeVar("T")
SERVER_KIND = os.environ.get("TROUPEMQ_INTEROP", "ours")  # whose servers are under test
ASKS_SOON = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
CLIENTS = ("java", "java-binary", "java-5", "go")

MakeNameServer = Callable[[str, Path], NameServer]
MakeBroker = Callable[..., Broker]
MakeTopic = Callable[..., str]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves this folder out unless the command line names it or something in it."""
    asked = (Path(argument.split("::")[0]).resolve() for argument in config.args)
    return None if any(path.is_relative_to(HERE) for path in asked) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them need processes; who says how long it takes is marked by itself."""
    for item in items:
        if item.path.is_relative_to(HERE) and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.slow)


def _needed(find: Callable[[], T]) -> T:
    try:
        return find()
    except MissingTool as tool:
        if os.environ.get("TROUPEMQ_CI"):
            pytest.fail(f"the interop suite needs it: {tool}")
        pytest.skip(f"no interop suite here: {tool}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if lacking := missing():
        terminalreporter.write_line(f"the interop suite could not run: {'; '.join(lacking)}")


@pytest.fixture(scope="session")
def java_tools() -> Java:
    return _needed(java)


@pytest.fixture(scope="session")
def java_5_tools() -> Java:
    return _needed(java_5)


@pytest.fixture(scope="session")
def go_program() -> Path:
    return _needed(go_agent)


@pytest.fixture(scope="session")
def go_tls_program() -> Path:
    return _needed(go_tls_agent)


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interop")


@pytest.fixture(scope="session")
def make_name_server(java_tools: Java) -> MakeNameServer:
    """A name server of either kind, not started."""

    def make(kind: str, folder: Path) -> NameServer:
        return (
            OfficialNameServer(java_tools, folder) if kind == "official" else OurNameServer(folder)
        )

    return make


@pytest.fixture(scope="session")
def make_broker(java_tools: Java) -> MakeBroker:
    """A broker of either kind with small files, not started; `more` are settings."""

    def make(
        kind: str,
        folder: Path,
        name_server: NameServer,
        store: Path | None = None,
        **more: str,
    ) -> Broker:
        settings = SMALL_FILES | PROPERTY_FILTER | more
        if kind == "official":
            return OfficialBroker(java_tools, folder, name_server, settings, store)
        return OurBroker(folder, name_server, settings, store)

    return make


@pytest.fixture(scope="session")
def broker(
    scratch: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> Iterator[Broker]:
    """The one broker that the cases share, with its name server."""
    with (
        make_name_server(SERVER_KIND, scratch / "name-server") as name_server,
        make_broker(SERVER_KIND, scratch / "broker", name_server) as broker,
    ):
        yield broker


@pytest.fixture(scope="session", params=["official", "ours"])
def any_broker(
    request: pytest.FixtureRequest,
    scratch: Path,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> Iterator[Broker]:
    """A broker of each kind that soon asks for open transactions, for cases of our own client."""
    folder = scratch / f"any-{request.param}"
    with (
        make_name_server(request.param, folder / "name-server") as name_server,
        make_broker(request.param, folder / "broker", name_server, **ASKS_SOON) as broker,
    ):
        yield broker


@pytest.fixture(scope="session")
def java_beside(any_broker: Broker, java_tools: Java) -> Iterator[Agent]:
    """A Java client of that broker."""
    with closing(java_agent("java", java_tools, any_broker.scratch, any_broker)) as agent:
        yield agent


@pytest.fixture(scope="session")
def start_client(
    java_tools: Java, java_5_tools: Java, go_program: Path, scratch: Path, broker: Broker
) -> Iterator[Callable[[str], Agent]]:
    """Starts a client process of a kind, one of CLIENTS."""
    numbers = count(1)
    with ExitStack() as stack:

        def start(client: str) -> Agent:
            name = f"{client}-{next(numbers)}"
            if client == "go":
                agent = go_client(name, go_program, scratch, broker)
            else:
                options = [BINARY_HEADER] if client == "java-binary" else []
                tools = java_5_tools if client == "java-5" else java_tools
                agent = java_agent(name, tools, scratch, broker, *options)
            return stack.enter_context(closing(agent))

        yield start


@pytest.fixture(scope="session")
def client_of(start_client: Callable[[str], Agent]) -> Callable[[str], Agent]:
    """The shared process of each kind of client."""
    known: dict[str, Agent] = {}

    def client(kind: str) -> Agent:
        if kind not in known:
            known[kind] = start_client(kind)
        return known[kind]

    return client


@pytest.fixture(scope="session")
def agents(
    java_tools: Java,
    java_5_tools: Java,
    go_program: Path,
    scratch: Path,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> Iterator[dict[str, Agent]]:
    """A client of each kind of side_by_side.KINDS, of one broker for traces and short delays."""
    folder = scratch / "side-by-side"
    with (
        make_name_server(SERVER_KIND, folder / "name-server") as name_server,
        make_broker(SERVER_KIND, folder / "broker", name_server, **SHORT_DELAYS) as broker,
        ExitStack() as stack,
        ThreadPoolExecutor() as pool,
    ):
        starting = {
            "java": pool.submit(java_agent, "java", java_tools, folder, broker, *SOON_BALANCED),
            "java-5": pool.submit(
                java_agent, "java-5", java_5_tools, folder, broker, *SOON_BALANCED
            ),
            "go": pool.submit(go_client, "go", go_program, folder, broker),
        }
        yield {
            kind: stack.enter_context(closing(agent.result())) for kind, agent in starting.items()
        }


@pytest.fixture(scope="session")
def new_topic(client_of: Callable[[str], Agent], broker: Broker) -> MakeTopic:
    """Creates a topic by a client's own call and waits until the name server tells its route."""
    numbers = count(1)

    def make(label: str, queues: int = 4, by: str = "java") -> str:
        topic = f"IT-{label}-{next(numbers)}"
        client_of(by).create_topic(topic, queues)
        wait_for_route(broker, topic)
        return topic

    return make


def wait_for_route(broker: Broker, topic: str) -> None:
    asked = broker.asked_as, broker.asked_over
    wait_until(lambda: has_route(broker.name_server.address, topic, *asked), f"a route to {topic}")
