"""A process starts, serves until it is told to stop, and ends with a code that says how it went."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from errno import ENOSPC
from pathlib import Path
from threading import Event

import pytest

from actors.engine.system import StartFailed
from actors.network.connections import PortTaken
from storage.errors import StoreError
from troupemq.client.errors import RouteNotFound
from troupemq.daemon import Serving, serve
from troupemq.interrupts import INTERRUPTED
from troupemq.text import tell

WAIT_S = 10.0
OnGiveUp = Callable[[str], None]


def terminate(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


class SignalClock:
    """Seconds that the test counts, asked whenever a signal comes."""

    def __init__(self) -> None:
        self._now_s = 100.0
        self._noticed = Event()

    def __call__(self) -> float:
        now_s = self._now_s  # of this signal: once it is noticed the next one may come
        self._noticed.set()
        return now_s

    def send(self, number: int, at_s: float) -> None:
        """A signal comes `at_s` after the beginning; returns when it was noticed."""
        self._now_s = 100.0 + at_s
        noticed = self._noticed = Event()
        terminate(number)
        assert noticed.wait(WAIT_S)


class Service:
    """Something that serves; remembers its stop."""

    def __init__(self, stops: bool = True) -> None:
        self.stopped_in: list[float] = []
        self._stops = stops

    def stop(self, timeout_s: float) -> bool:
        self.stopped_in.append(timeout_s)
        return self._stops

    def start(self, _: OnGiveUp) -> Serving:
        return Serving({"broker": 10911}, self.stop)


@pytest.fixture(autouse=True)
def terminal() -> Iterator[None]:
    """A terminal whose end is told, also to tests that nohup runs."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_in_order_with_exit_code_0(number: int) -> None:
    service = Service()
    assert serve(service.start, work=lambda over: terminate(number)) == 0
    assert len(service.stopped_in) == 1


@pytest.mark.parametrize(
    ("once", "says_end", "told"),
    [(False, True, "Stopped.\n"), (True, True, ""), (False, False, "")],
)
def test_the_end_of_a_server_logs_one_line(
    once: bool, says_end: bool, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stop used to be silent, as after a crash."""
    code = serve(Service().start, work=lambda _: terminate(), once=once, says_end=says_end)
    assert code == 0
    assert capsys.readouterr().out == told


def test_signal_handlers_are_restored_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    serve(Service().start, work=lambda over: terminate())
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_ready_file_has_the_real_ports_while_serving(tmp_path: Path) -> None:
    ready, seen = tmp_path / "ready.json", []

    def work(_: Event) -> None:
        seen.append(json.loads(ready.read_text()))

    assert serve(Service().start, ready_file=ready, work=work, once=True) == 0
    assert seen == [{"pid": os.getpid(), "broker": 10911}]
    assert not ready.exists()


@pytest.mark.parametrize(
    "error, code",
    [
        (StoreError("The store is damaged."), 1),
        (PortTaken("The port is in use."), 11),
        (RouteNotFound("No route."), 1),
        (OSError(13, "Permission denied", "/store"), 14),
    ],
)
def test_an_operators_mistake_is_a_one_sentence_error(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(_: OnGiveUp) -> Serving:
        raise error

    assert serve(start) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("troupemq: ")
    assert str(error.args[-1] if isinstance(error, OSError) else error) in lines[0]


def test_a_failed_start_shows_the_store_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start(_: OnGiveUp) -> Serving:
        raise StartFailed("StoreError: The disk is full.") from StoreError("The disk is full.")

    assert serve(start) == 1
    assert capsys.readouterr().err == "troupemq: The disk is full.\n"


def test_an_unclean_stop_is_exit_code_1() -> None:
    assert serve(Service(stops=False).start, work=lambda over: terminate()) == 1


def test_a_failed_stop_logs_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def stop(_: float) -> bool:
        raise StoreError("The disk is full.")

    assert serve(lambda give_up: Serving({}, stop), work=lambda over: terminate()) == 1
    assert "The disk is full." in capsys.readouterr().err


def test_a_closed_terminal_stops_no_server_that_ignores_it() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert serve(Service().start, work=lambda _: terminate(signal.SIGHUP), once=True) == 0


SIGTERM, SIGINT, SIGHUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


@pytest.mark.parametrize(
    "signals, code",
    [
        ([(SIGTERM, 0)], 0),
        ([(SIGTERM, 0), (SIGTERM, 0.001), (SIGTERM, 1.999)], 0),
        ([(SIGTERM, 0), (SIGTERM, 2.0)], 1),
        ([(SIGTERM, 0), (SIGTERM, 1.0), (SIGTERM, 2.5)], 1),  # since the first, not the last
        ([(SIGTERM, 0), (SIGINT, 0.5)], 1),
        ([(SIGINT, 0), (SIGINT, 0.5)], 1),
        ([(SIGINT, 0), (SIGTERM, 0.5)], 1),
        ([(SIGTERM, 0), (SIGHUP, 0.5), (SIGHUP, 2.5)], 0),
        ([(SIGHUP, 0), (SIGTERM, 0.5), (SIGTERM, 2.4)], 0),
        ([(SIGHUP, 0), (SIGTERM, 0.5), (SIGINT, 0.6)], 1),
    ],
    ids=str,
)
def test_signals_within_two_seconds_count_once_and_later_ones_force_the_end(
    signals: list[tuple[signal.Signals, float]], code: int
) -> None:
    """Supervisors of processes signal the process and then its group."""
    clock, insisted = SignalClock(), Event()
    codes: list[int] = []

    def stop(_: float) -> bool:
        for each in signals[1:]:
            clock.send(*each)
        return code == 0 or insisted.wait(WAIT_S)

    def end_process(code: int) -> None:
        codes.append(code)
        insisted.set()

    ended = serve(
        lambda give_up: Serving({}, stop),
        work=lambda over: clock.send(*signals[0]),
        end_process=end_process,
        clock=clock,
    )
    assert (ended, codes) == (code, [1] * code)


def test_the_first_signal_does_not_shorten_a_running_stop() -> None:
    clock = SignalClock()

    def stop(_: float) -> bool:
        clock.send(SIGTERM, 0)
        return True

    code = serve(lambda give_up: Serving({}, stop), work=lambda _: None, once=True, clock=clock)
    assert code == 0


def test_a_stop_past_its_deadline_ends_the_process() -> None:
    may_stop = Event()
    codes: list[int] = []
    code = serve(
        lambda give_up: Serving({}, lambda timeout_s: may_stop.wait(WAIT_S)),
        work=lambda over: terminate(),
        deadline_s=0.05,
        end_process=codes.append,
    )
    may_stop.set()
    assert (code, codes) == (1, [1])


def test_work_is_cancelled_when_a_stop_is_forced(capsys: pytest.CaptureFixture[str]) -> None:
    """A job that got Ctrl-C twice spoke of a recovery at the next start, with exit code 1."""
    may_stop = Event()
    codes: list[int] = []
    code = serve(
        lambda give_up: Serving({}, lambda timeout_s: may_stop.wait(WAIT_S)),
        work=lambda over: terminate(),
        cancelled="The job was cancelled.",
        deadline_s=0.05,
        end_process=codes.append,
    )
    may_stop.set()
    assert (code, codes) == (INTERRUPTED, [INTERRUPTED])
    assert capsys.readouterr().err == "troupemq: The job was cancelled.\n"


def test_a_supervisor_that_gives_up_stops_the_rest_with_exit_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    service = Service()

    def start(on_give_up: OnGiveUp) -> Serving:
        on_give_up("put_message failed 6 times")
        return service.start(on_give_up)

    assert serve(start) == 1
    assert len(service.stopped_in) == 1
    assert "put_message failed 6 times" in capsys.readouterr().err


def test_completed_work_ends_the_process() -> None:
    service = Service()
    assert serve(service.start, work=lambda over: None, once=True) == 0
    assert len(service.stopped_in) == 1


def test_failed_work_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    def work(_: Event) -> None:
        raise StoreError("No Java.")

    assert serve(Service().start, work=work, once=True) == 1
    assert capsys.readouterr().err == "troupemq: No Java.\n"


def test_with_serving_requested_the_process_continues_after_work() -> None:
    service = Service()

    def work(_: Event) -> None:
        terminate()

    assert serve(service.start, work=work) == 0


def test_work_can_see_that_a_stop_was_requested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    learnt = Event()

    def work(over: Event) -> None:
        terminate()
        if over.wait(WAIT_S):
            learnt.set()
        raise StoreError("interrupted")

    def stop(_: float) -> bool:
        return learnt.wait(WAIT_S)

    assert serve(lambda give_up: Serving({}, stop), work=work) == 0
    assert capsys.readouterr().err == ""


def test_an_unwritable_ready_file_stops_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service()
    assert serve(service.start, ready_file=tmp_path / "missing" / "ready.json") == 10
    assert len(service.stopped_in) == 1
    assert capsys.readouterr().err.startswith("troupemq: ")


def test_a_full_disk_stops_no_server_whose_earlier_ready_file_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several masters did not serve what it had stored until there was space."""
    ready, seen = tmp_path / "ready.json", []
    ready.write_text(" " * 100)

    def refuse(*_: object) -> int:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)

    def work(_: Event) -> None:
        seen.append(ready.read_text())

    code = serve(Service().start, ready_file=ready, work=work, once=True, keeps_file=True)
    assert code == 0
    assert json.loads(seen[0]) == {"pid": os.getpid(), "broker": 10911}
    assert len(seen[0]) == ready.stat().st_size == 100


def test_a_closed_stdout_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        tell("no reader")
        tell("nor this")
        monkeypatch.undo()


def test_a_full_disk_under_stdout_stops_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers and name servers did not start, and one of several masters did not come back."""
    with open("/dev/full", "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        tell("no room")
        tell("nor for this")
        monkeypatch.undo()
