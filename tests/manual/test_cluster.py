"""docs/cluster.md, followed: its brokers in one process, on free ports; its commands."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from actors.config import load_broker_config, parse_namesrv_config
from tests.compat.patience import wait_until
from tests.manual.following import HOST, blocks, commands, run, wait_for_registration
from tests.support.brokers import send_command
from tests.support.wire import Wire
from troupemq.cli.servers import SMALL_FILES
from troupemq.servers import Servers

PAGE = "cluster.md"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    """Ends what is started, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield stack


def started(stack: ExitStack) -> Servers:
    servers = Servers(lambda reason: None)
    stack.callback(servers.stop, 20)
    return servers


def broker_of(stack: ExitStack, words: list[str], namesrv: str) -> Servers:
    """Start the broker of a command line of the page, on another port."""
    program, command, c, path, *options = words
    assert (program, command, c, options[::2]) == ("troupemq", "broker", "-c", ["-s", "-s"])
    settings = dict(each.split("=") for each in options[1::2])
    here = {"bindAddress": HOST, "brokerIP1": HOST, "brokerIP2": HOST, "namesrvAddr": namesrv}
    own = {**SMALL_FILES, "mappedFileSizeCommitLog": str(1 << 20), "listenPort": "0"}
    broker, store, findings = load_broker_config(str(ROOT / path), {**settings, **here, **own})
    assert not findings
    servers = started(stack)
    servers.start_broker(broker, store)
    return servers


def test_the_commands_of_the_page_do_what_it_describes(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = started(stack)
    names.start_namesrv(parse_namesrv_config("", {"listenPort": "0", "bindAddress": HOST})[0])
    namesrv = f"{HOST}:{names.ports['namesrv']}"
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    starting, looking = blocks(PAGE)
    lines = commands(starting)
    ports = [settings.split("=")[1] for *_, settings, _, _ in lines]
    assert len(set(ports)) == len(lines) == 4
    brokers = [broker_of(stack, line, namesrv) for line in lines]
    for each in brokers:
        wait_for_registration(each)
    wait_until(lambda: followed(brokers[::2]), "both slaves follow")
    printed = [run(*words) for words in commands(looking)]
    listed = [line.split()[1:3] for line in printed[0].splitlines() if "DefaultCluster" in line]
    assert sorted(listed) == [[name, id_] for name in ("broker-a", "broker-b") for id_ in "01"]
    assert "broker-a" in printed[2] and "broker-b" in printed[2]
    assert "OK" in printed[3] and "a book" in printed[4]
    assert printed[5].count("commitLogMaxOffset") == 4


def followed(masters: list[Servers]) -> bool:
    """Whether a send to each is answered with its slave's word."""

    for each in masters:
        with Wire(f"{HOST}:{each.ports['broker']}") as wire:
            if wire.ask(send_command(b"first", topic="Try")).code:
                return False
    return True
