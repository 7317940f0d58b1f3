"""Tests of troupemq/cli/top.py: the overview as it is printed, and as keys change it."""

import fcntl
import os
import re
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from select import select
from threading import Thread
from time import monotonic

import pytest
from click.testing import CliRunner

from protocol.bodies import MessageQueue
from protocol.bodies_admin import ClientConnection, ConsumerConnection
from protocol.bodies_client import ConsumerRunningInfo, MessageInHand, ProcessQueueInfo
from protocol.bodies_own import ActorLine, ActorList, OffsetProgress, ProgressStats
from protocol.codes import RequestCode
from tests.troupemq.client.test_progress import PYTHON
from tests.troupemq.fake_server import FakeServer, serve_routes
from tests.troupemq.test_cluster_overview import answers, cluster, fill, now_ms
from troupemq.cli import cli
from troupemq.cli.terminal import Terminal, keys_in
from troupemq.cli.top import follow
from troupemq.client.admin import Admin
from troupemq.cluster_overview import ClusterPoller
from troupemq.text import cut, size_text, span_text

COLUMNS, ROWS, WAIT_S = 80, 24, 10.0


@pytest.fixture
def namesrv() -> Iterator[FakeServer]:
    with FakeServer() as namesrv, FakeServer() as broker:
        name = "evil\x1b[2J[red]"
        cluster(namesrv, **{name: broker.address})
        fill(broker, name)
        yield namesrv


def once(namesrv: FakeServer, *options: str) -> list[str]:
    result = CliRunner().invoke(cli, ["top", *options, "-n", namesrv.address])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


@pytest.mark.parametrize("options", [(), ("--once",)])
def test_one_plain_table_is_printed_without_a_terminal(
    namesrv: FakeServer, options: tuple[str, ...]
) -> None:
    lines = once(namesrv, *options)
    assert "1 brokers, 1 of them masters  In 12 msg/s  Out 7 msg/s  Lag 4" in lines[0]
    (group,) = (line.split() for line in lines if "billing" in line)
    in_flight, stuck = group[-3], group[-1]
    assert group[:3] == ["billing", "Orders", "4"]
    assert group[3].startswith("≤"), "an official broker tells the last consumed message only"
    assert (in_flight, stuck) == ("?", "?"), "unknown there"
    headings = " ".join(lines)
    for text in ("Time lag", "In (msg/s)", "Out (msg/s)", "Dispatch lag", "2.0 KiB", "87%"):
        assert text in headings
    assert "Actor" not in headings


def test_names_of_servers_are_escaped(namesrv: FakeServer) -> None:
    lines = "\n".join(once(namesrv))
    assert "\x1b" not in lines
    assert "[red]" in lines


def test_actors_are_printed_on_demand() -> None:
    with FakeServer() as namesrv, FakeServer() as broker:
        cluster(namesrv, ours=broker.address)
        fill(broker, "ours")
        answers(broker, RequestCode.GET_ACTORS, ActorList([ActorLine("reput", True, 4, 9, 1)], 2))
        assert not any("reput" in line for line in once(namesrv))
        assert any("reput" in line for line in once(namesrv, "--actors"))


def test_without_a_name_server_top_is_a_one_sentence_error() -> None:
    result = CliRunner().invoke(cli, ["top", "--once", "-n", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.output and "Traceback" not in result.output


def test_numbers_are_human_readable() -> None:
    assert [size_text(each) for each in (0, 1023, 1536, 5 << 30)] == [
        *("0 B", "1,023 B", "1.5 KiB"),
        "5.0 GiB",
    ]
    assert [span_text(each) for each in (5, 300, 9000, 400_000)] == ["5 s", "5 min", "2 h", "5 d"]
    assert [cut(each, 4) for each in ("abcd", "abcde", "\u4f60\u597d\u5417")] == [
        *("abcd", "abc…"),
        "\u4f60…",
    ]


def test_keys_are_recognized_in_what_a_terminal_sends() -> None:
    sent = "q\x1b[A\x1bOB\x1b[5~\x1b[1;5Z/\r\x7f\x1b"
    assert list(keys_in(sent)) == ["q", "up", "down", "page up", "/", "enter", "backspace", "esc"]


# --- in a pseudo-terminal


def fill_group(namesrv: FakeServer, broker: FakeServer) -> None:
    """The group billing with a member whose threads are stuck in slow()."""
    serve_routes(namesrv, {"ours": broker}, {"%RETRY%billing": 1})
    queue, now = MessageQueue("Orders", "ours", 0), now_ms()
    where = OffsetProgress(10, 7, 5000, 9, 0, now - 300_000)
    stats = ProgressStats({queue: where}, 2.5, now - 900_000, now)
    answers(broker, RequestCode.GET_CONSUME_STATS, stats)
    connection = ClientConnection("1.2.3.4@till", "1.2.3.4:5", "PYTHON", 407)
    there = ConsumerConnection([connection], {}, "CONSUME_PASSIVELY", "CLUSTERING")
    answers(broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, there)
    call = MessageInHand("7F01", 7, now - 200_000, 0)
    held = ProcessQueueInfo(cached_msg_count=2, last_consume_timestamp=now - 240_000)
    held.in_hand, held.last_consumed_offset = [call], 6
    info = ConsumerRunningInfo(mq_table={queue: held}, jstack=PYTHON)
    answers(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, info)


class PseudoTerminal:
    """A terminal of 80 columns and 24 rows; the screen as an operator sees it."""

    def __init__(self) -> None:
        self._master, self._slave = os.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._out = os.fdopen(os.dup(self._slave), "w", encoding="utf-8")
        assert isinstance(self._out, TextIOWrapper)
        self.terminal = Terminal(self._slave, self._out)
        self._seen = ""

    def close(self) -> None:
        self._out.close()
        os.close(self._slave)
        os.close(self._master)

    def screen(self) -> list[str]:
        rows = dict.fromkeys(range(1, ROWS + 1), "")
        for row, text in re.findall(r"\x1b\[(\d+);1H(.*?)\x1b\[K", self._seen, re.DOTALL):
            rows[int(row)] = re.sub(r"\x1b\[[0-9;]*m", "", text)
        return list(rows.values())

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait(self, is_there: Callable[[str], bool]) -> list[str]:
        """Read until the screen is as wanted."""
        deadline_s = monotonic() + WAIT_S
        while monotonic() < deadline_s:
            if is_there("\n".join(self.screen())):
                return self.screen()
            if select([self._master], [], [], 0.05)[0]:
                self._seen += os.read(self._master, 1 << 16).decode(errors="replace")
        raise AssertionError("\n".join(self.screen()))

    @property
    def has_ended(self) -> bool:
        return self._seen.endswith("\x1b[?1049l")

    @property
    def raw(self) -> str:
        return self._seen


@contextmanager
def followed(namesrv: FakeServer) -> Iterator[tuple[PseudoTerminal, Thread]]:
    terminal = PseudoTerminal()
    with Admin(namesrv.address) as admin:
        arguments = ClusterPoller(admin), 0.2, terminal.terminal
        thread = Thread(target=follow, args=arguments, daemon=True)
        thread.start()
        try:
            yield terminal, thread
        finally:
            terminal.press("\x1bq")  # a filter that is being typed ends first
            thread.join(WAIT_S)
            terminal.close()
            assert not thread.is_alive()


@pytest.fixture
def ours() -> Iterator[FakeServer]:
    with FakeServer() as namesrv, FakeServer() as broker:
        cluster(namesrv, ours=broker.address)
        fill(broker, "ours", is_ours=True)
        fill_group(namesrv, broker)
        answers(broker, RequestCode.GET_ACTORS, ActorList([ActorLine("reput", True, 4, 9, 1)], 2))
        yield namesrv


def test_enter_leads_from_a_stuck_group_to_the_function_that_holds_it(ours: FakeServer) -> None:
    with followed(ours) as (terminal, _):
        lines = terminal.wait(lambda text: "!billing" in text)
        assert "! billing is stuck for 5 min at offset 7 of Orders, ours, queue 0." in lines
        (group,) = (line.split() for line in lines if line.startswith("!billing"))
        assert group == ["!billing", "Orders", "4", "5", "min", "2", "2", "5", "min"]
        assert all(len(line) <= COLUMNS for line in lines)
        terminal.press("\r")
        lines = terminal.wait(lambda text: "esc back" in text and "slow()" in text)
        assert any(line.startswith("!1.2.3.4@till") for line in lines)
        verdict = "   nothing finished for 4 min; 1 of 2 threads busy in slow(), incident.py:8"
        assert verdict in lines
        assert any("7F01: offset 7 of Orders, ours, queue 0 for 3 min" in line for line in lines)
        terminal.press("t")
        terminal.wait(lambda text: "listen(), incident.py:13" in text)
        terminal.press("\x1b")
        terminal.wait(lambda text: "Stuck" in text and "slow()" not in text)


def test_keys_sort_filter_help_and_quit(ours: FakeServer) -> None:
    with followed(ours) as (terminal, thread):
        terminal.wait(lambda text: "Lag▾" in text)
        terminal.press("\x1b[C")
        terminal.wait(lambda text: "Time lag▾" in text)
        terminal.press("/none")
        terminal.wait(lambda text: "filter: none" in text and "No group contains 'none'." in text)
        terminal.press("\x1b")
        terminal.wait(lambda text: "!billing" in text and "filter" not in text.splitlines()[-2])
        terminal.press("?")
        terminal.wait(lambda text: "reverse the order" in text)
        terminal.press("x")
        terminal.wait(lambda text: "!billing" in text)
        terminal.press("a")
        terminal.wait(lambda text: "Handlers longer than 50 ms: 2" in text and "reput" in text)
        terminal.press("q")
        thread.join(WAIT_S)
        terminal.wait(lambda _: terminal.has_ended)


def test_a_silent_cluster_is_said_while_the_last_figures_stay(ours: FakeServer) -> None:
    with followed(ours) as (terminal, _):
        terminal.wait(lambda text: "!billing" in text)
        ours.on(
            RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.answer(1, remark="away")
        )
        terminal.wait(lambda text: "away" in text and "!billing" in text)
