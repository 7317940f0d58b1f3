"""docs/operations.md, followed: what one types at a broker that serves, and at its store."""

import json
import shlex
from pathlib import Path

import pytest

from tests.compat.patience import wait_until
from tests.manual.following import blocks, commands, run
from troupemq.cli.servers import SMALL_FILES
from troupemq.servers import Servers

PAGE = "operations.md"
NAMESRV = "127.0.0.1:9876"


@pytest.fixture
def inhabited(servers: Servers) -> Servers:
    """With a topic, and a group that has taken one of two messages."""
    for line in (
        "admin updateTopic -c DefaultCluster -t Orders -r 1 -w 1",
        "send -t Orders -b one",
        "consume -t Orders -g billing --count 1",
    ):
        run("troupemq", *shlex.split(line))
    run("troupemq", "send", "-t", "Orders", "-b", "another", "-k", "4711")
    queue = Path("data/store/consumequeue/Orders/0/00000000000000000000")
    wait_until(queue.is_file, "the units are written out")
    return servers


def block_with(words: str) -> list[list[str]]:
    (found,) = (block for block in blocks(PAGE) if words in block)
    return commands(found)


@pytest.mark.slow  # completion asks bash which one it is
def test_the_administrators_commands_do_what_the_page_describes(inhabited: Servers) -> None:
    namesrv = f"127.0.0.1:{inhabited.ports['namesrv']}"
    printed = {}
    for words in block_with("admin clusterList -n"):
        for sign in ("|", ">"):  # what becomes of the output is another program's
            words = words[: words.index(sign)] if sign in words else words
        done = run(*(namesrv if word == NAMESRV else word for word in words))
        printed[words[2]] = done
    assert "broker-a" in printed["clusterList"]
    rows = [json.loads(line) for line in printed["consumerProgress"].splitlines()]
    assert any(row.get("lag") for row in rows), rows
    assert "would be set" in printed["import"] and "Orders" in Path("all.json").read_text()
    assert "_TROUPEMQ_COMPLETE" in printed["bash"]
    route = json.loads(run("troupemq", "admin", "topicRoute", "-t", "Orders", "--json"))
    assert "8" in json.dumps(route)


def test_the_commands_for_what_is_stuck_do_what_the_page_describes(inhabited: Servers) -> None:
    for words in block_with("memberProgress"):
        said = run(*words, "-n", f"127.0.0.1:{inhabited.ports['namesrv']}")
        assert "Orders" in said or "billing" in said or "no members" in said


def without_from(words: list[str]) -> list[str]:
    """The queue of the page has more units than this one."""
    return words[: words.index("--from")] if "--from" in words else words


@pytest.mark.heavy
def test_the_store_commands_do_what_the_page_describes(inhabited: Servers) -> None:
    check, rebuild = block_with("store rebuild")
    dumps = block_with("store dump")
    sizes = "".join(f"{key}={value}\n" for key, value in SMALL_FILES.items())
    Path("broker.conf").write_text(sizes)  # a page's reader has the usual ones
    assert "in use by process" in run(*check, "-c", "broker.conf")
    whole, log, queue, topics = (run(*without_from(words)) for words in dumps)
    assert "commit log" in whole.lower() and "another" in log and "Orders" in topics
    assert queue
    inhabited.stop(20)
    assert "no faults found" in run(*check)
    run(*rebuild)
    assert "no faults found" in run(*check)
