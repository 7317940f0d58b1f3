"""Tests of troupemq/interrupts.py and __main__.py: Ctrl-C, again and again, without traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import click
import pytest
from click.testing import CliRunner

from tests.support.golden import REPOSITORY
from troupemq import interrupts
from troupemq.cli import cli
from troupemq.interrupts import INTERRUPTED, PATIENCE_S, Interrupts, Wakeup, sigterm_interrupts

WAIT_S = 60.0


def test_a_second_ctrl_c_is_ignored_and_a_late_one_ends_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment, codes = [100.0], list[int]()
    monkeypatch.setattr(interrupts, "monotonic", lambda: moment[0])
    monkeypatch.setattr(os, "_exit", codes.append)
    handler = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        handler(signal.SIGINT, None)
    moment[0] += PATIENCE_S
    handler(signal.SIGINT, None)
    assert codes == []
    moment[0] += 0.1
    handler(signal.SIGINT, None)
    assert codes == [INTERRUPTED]


def test_an_interrupted_command_reports_it_and_ends_with_130(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`send` and `console` said "Aborted!" and ended with 1."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(click.Group, "invoke", interrupted)
    result = CliRunner().invoke(cli, ["send", "-t", "T"])
    assert (result.exit_code, result.output) == (
        INTERRUPTED,
        "troupemq: interrupted by Ctrl-C.\n",
    )


def test_sigterm_interrupts_only_a_foreground_command() -> None:
    """`top` left the terminal on its other screen, without a cursor."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_repeated_signals_end_a_server_with_one_line(tmp_path: Path, number: int) -> None:
    """Signals while the interpreter shut down were tracebacks, or its exit code."""
    settings = ("listenPort=0", "bindAddress=127.0.0.1", f"kvConfigPath={tmp_path}/kv.json")
    options = [word for each in settings for word in ("-s", each)]
    with subprocess.Popen(
        [sys.executable, "-m", "troupemq", "namesrv", *options],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().endswith(". Press Ctrl-C to stop.\n")
        server.send_signal(number)
        assert server.stdout.readline() == "Stopped.\n"
        while server.poll() is None:  # until its very end
            server.send_signal(number)
        out, err = server.communicate(timeout=WAIT_S)
    assert (server.returncode, out) == (0, "")
    assert "Traceback" not in err and "KeyboardInterrupt" not in err


def test_a_handler_wakes_a_main_thread_that_is_about_to_wait_or_to_wake_itself() -> None:
    """A queue with a lock left both waiting for ever on PyPy."""
    wakeup, handled = Wakeup(), list[int]()

    def handle(number: int, _: FrameType | None) -> None:
        handled.append(number)
        wakeup.wake()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with wakeup:
            for _ in range(2000):
                signal.raise_signal(signal.SIGTERM)
                wakeup.wake()
                wakeup.wait(WAIT_S)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(handled) == 2000
    wakeup.wake()  # over: it does nothing
