"""Two brokers, one store: one holds it at a time, and either goes on where the other stopped."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from protocol.codes import ResponseCode
from tests.compat.admin_shell import admin_shell
from tests.compat.agent import Agent, closing, java_agent
from tests.compat.comparison import assert_same
from tests.compat.conftest import SERVER_KIND, MakeBroker, MakeNameServer, wait_for_route
from tests.compat.corpus import SERIAL, varied
from tests.compat.groups import receive, settle_group
from tests.compat.patience import wait_until
from tests.compat.remoting import has_key
from tests.compat.servers import Broker, NameServer
from tests.compat.toolchain import Java
from tests.support.brokers import send_command
from tests.support.wire import Wire
from troupemq.cli import cli

pytestmark = pytest.mark.slow(seconds=11)

REFUSAL_DEADLINE_S = 60.0
COUNT = 30
KEYS_OF = {"single-1": "key-single-1", "single-2": "second-single-2", "added-1": "key-added-1"}
MIXED = [("official", "ours"), ("ours", "official")]
ALIKE = [(SERVER_KIND, SERVER_KIND)]
PAIRS = (
    ALIKE
    if SERVER_KIND == "official"
    else [*MIXED, pytest.param("ours", "ours", marks=pytest.mark.whole)]
)


@dataclass(frozen=True)
class Ground:
    """Servers and clients of a case, with one folder each."""

    java: Java
    folder: Path
    make_name_server: MakeNameServer
    make_broker: MakeBroker

    @contextmanager
    def serving(
        self, kind: str, name: str, store: Path | None = None, *, names_kind: str = ""
    ) -> Iterator[tuple[NameServer, Broker]]:
        """A broker, on a store that is there or a new one, and its name server."""
        names_folder, folder = self.folder / f"{name}-names", self.folder / name
        with (
            self.make_name_server(names_kind or kind, names_folder) as names,
            self.make_broker(kind, folder, names, store) as broker,
        ):
            yield names, broker

    def client(self, name: str, broker: Broker) -> AbstractContextManager[Agent]:
        """A Java client of it, until the end of the block."""
        return closing(java_agent(name, self.java, self.folder, broker))


@pytest.fixture
def ground(
    java_tools: Java, tmp_path: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> Ground:
    return Ground(java_tools, tmp_path, make_name_server, make_broker)


def exit_code_is_good(broker: Broker, code: int | None) -> bool:
    return code == (143 if broker.kind == "official" else 0)  # Java: 128 + SIGTERM


@pytest.mark.parametrize("first, second", PAIRS)
def test_a_store_in_use_is_refused_to_a_second_broker(
    first: str, second: str, ground: Ground
) -> None:
    with (
        ground.serving(first, "holder") as (names, holder),
        ground.client("client", holder) as client,
    ):
        before = client.send("sync", "T", varied("before", COUNT))
        refused: Broker = ground.make_broker(second, ground.folder / "refused", names, holder.store)
        refused.launch()
        code = refused.child.wait(REFUSAL_DEADLINE_S)
        refused.stop()
        assert code not in (None, 0), refused.child.last_words()
        assert re.search("Lock failed|in use by another process", refused.child.last_words())
        after = client.send("sync", "T", varied("after", COUNT))
        client.join("member", "G", "T")
        receive(client, "member", 2 * COUNT)
        client.leave("member")
        assert_same([before, after], client.received("member"), holder)
        assert exit_code_is_good(holder, holder.stop()), holder.child.last_words()


@pytest.mark.parametrize("first, second", PAIRS)
def test_a_broker_continues_with_another_brokers_store(
    first: str, second: str, ground: Ground
) -> None:
    with ground.serving(first, "left") as (_, left):
        with ground.client("early", left) as early:
            early.create_topic("T", 4)
            wait_for_route(left, "T")
            settle_group(early, "G", "T", 4)
            consumed = early.send("sync", "T", varied("consumed", COUNT))
            early.join("member", "G", "T")
            receive(early, "member", COUNT)
            early.leave("member")
            waiting = early.send("batch", "T", varied("waiting", COUNT))
        assert exit_code_is_good(left, left.stop()), left.child.last_words()
        assert_same([consumed], early.received("member"), left)
    with (
        ground.serving(second, "new", left.store) as (_, new),
        ground.client("late", new) as late,
    ):
        added = late.send("sync", "T", varied("added", COUNT))
        late.join("member", "G", "T")
        receive(late, "member", 2 * COUNT)
        late.leave("member")
        old = [event for event in late.received("member") if event["storeHost"] == left.address]
        fresh = [event for event in late.received("member") if event["storeHost"] == new.address]
        assert_same([waiting], old, left)
        assert_same([added], fresh, new)


@pytest.mark.parametrize("first, second", PAIRS)
def test_a_broker_recovers_the_store_of_another_killed_broker(
    first: str, second: str, ground: Ground
) -> None:
    with ground.serving(first, "killed") as (_, killed):
        with ground.client("early", killed) as early:
            early.create_topic("T", 4)
            wait_for_route(killed, "T")
            single = early.send("sync", "T", varied("single", COUNT))
            batch = early.send("batch", "T", varied("batch", COUNT))
        with Wire(killed.address) as wire:
            delayed = send_command(b"later", topic="T", properties="DELAY\x011\x02KEYS\x01later")
            assert wire.ask(delayed).code == ResponseCode.SUCCESS
        os.kill(killed.pid, signal.SIGKILL)
        assert killed.child.wait(REFUSAL_DEADLINE_S) == -signal.SIGKILL
    with (
        ground.serving(second, "new", killed.store) as (names, new),
        ground.client("late", new) as late,
    ):
        added = late.send("sync", "T", varied("added", COUNT))
        late.join("member", "G", "T")
        receive(late, "member", 3 * COUNT + (second == "official"))
        late.leave("member")
        got = [event for event in late.received("member") if SERIAL in event["properties"]]
        old = [event for event in got if event["storeHost"] == killed.address]
        fresh = [event for event in got if event["storeHost"] == new.address]
        assert_same([single, batch], old, killed)
        assert_same([added], fresh, new)
        with admin_shell(ground.java, ground.folder, names.address) as run:
            for key in KEYS_OF.values():
                wait_until(lambda: has_key(new.address, "T", key), "the index")  # noqa: B023
                shown = run("queryMsgByKey", "-t", "T", "-k", key)
                assert len(re.findall(r"^[0-9A-F]{32,56} ", shown, re.MULTILINE)) == 1, shown


@pytest.mark.parametrize("first, second", PAIRS)
def test_a_broker_starts_on_a_copy_of_another_running_brokers_store(
    first: str, second: str, ground: Ground
) -> None:
    copy, restored = ground.folder / "copy", ground.folder / "restored"
    with ground.serving(first, "copied") as (_, copied):
        with ground.client("early", copied) as early:
            early.create_topic("T", 4)
            wait_for_route(copied, "T")
            single = early.send("sync", "T", varied("single", COUNT))
            backup_of(copied.store, copy)
            batch = early.send("batch", "T", varied("batch", COUNT))
            backup_of(copied.store, copy)
            early.send("sync", "T", varied("late", COUNT))
        os.kill(copied.pid, signal.SIGKILL)
        assert copied.child.wait(REFUSAL_DEADLINE_S) == -signal.SIGKILL
    result = CliRunner().invoke(cli, ["store", "restore", str(copy), str(restored)])
    assert result.exit_code == 0, result.output
    with (
        ground.serving(second, "new", restored) as (_, new),
        ground.client("late", new) as late,
    ):
        added = late.send("sync", "T", varied("added", COUNT))
        late.join("member", "G", "T")
        receive(late, "member", 3 * COUNT)
        late.leave("member")
        got = late.received("member")
        assert_same([single, batch], [x for x in got if x["storeHost"] == copied.address], copied)
        assert_same([added], [x for x in got if x["storeHost"] == new.address], new)


def backup_of(store: Path, copy: Path) -> None:
    result = CliRunner().invoke(cli, ["store", "backup", str(store), str(copy), "--rate", "0"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("names_kind, broker_kind", MIXED if SERVER_KIND == "ours" else ALIKE)
def test_a_name_server_serves_a_broker_of_the_other_kind(
    names_kind: str, broker_kind: str, ground: Ground
) -> None:
    with (
        ground.serving(broker_kind, "broker", names_kind=names_kind) as (_, broker),
        ground.client("client", broker) as client,
    ):
        sent = client.send("sync", "T", varied("sent", COUNT))
        client.join("member", "G", "T")
        receive(client, "member", COUNT)
        client.leave("member")
        assert_same([sent], client.received("member"), broker)
