"""One case for Java 4.9.7, Java 5.5.0 and Go at the same time, against one broker.

Most of a case is waiting, so three take no longer than one.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.compat.agent import Agent
from tests.compat.conftest import wait_for_route

KINDS = ("java", "java-5", "go")
Agents = dict[str, Agent]
"""One of each of KINDS: the fixture `agents`."""


def each_kind(
    agents: Agents, case: Callable[[Agents, str], None], kinds: tuple[str, ...] = KINDS
) -> None:
    """Runs a case with every client; fails with all that failed."""
    with ThreadPoolExecutor() as pool:
        running = {kind: pool.submit(case, agents, kind) for kind in kinds}
    failed = {kind: done.exception() for kind, done in running.items() if done.exception()}
    assert not failed, "\n".join(f"{kind}: {error!r}" for kind, error in failed.items())


def new_topic(agents: Agents, topic: str, queues: int = 4) -> str:
    agents["java"].create_topic(topic, queues)
    wait_for_route(agents["java"].broker, topic)
    return topic


def known_group(agent: Agent, group: str, topic: str) -> str:
    """A group whose retry topic is there: a client that comes to a new one looks only later."""
    agent.join(f"first-of-{group}", group, topic)
    agent.leave(f"first-of-{group}")
    wait_for_route(agent.broker, f"%RETRY%{group}")
    return group
