"""A producer or consumer starts once and stops once, in any order of calls."""

import logging

import pytest

from tests.support.processes import told_by_child
from troupemq.client.connection import lifecycle
from troupemq.client.connection.lifecycle import ClientMember, Work
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.errors import ClientClosed, ClientError

NOBODY = "127.0.0.1:1"


class Member(ClientMember):
    """Writes down what it is told."""

    kind = "member"
    stop_timeout_s = 7.0

    def __init__(self, fails: int = 0) -> None:
        super().__init__("Anybody", NOBODY, "one")
        self.fails = fails
        self.told: list[object] = []
        self.sends = self.ended = 0
        self.offsets: int | None = None

    def _prepare(self) -> None:
        if self.fails:
            self.fails -= 1
            raise ClientError("no name server")

    def _begin(self) -> None:
        self.told.append("begin")

    def _work(self) -> Work:
        return {"sends": lambda: self.sends}

    def _finish(self, deadline_s: float) -> int | None:
        self.told.append(deadline_s)
        self.sends -= self.ended
        return self.offsets


@pytest.fixture(autouse=True)
def clock_at_100_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "monotonic", lambda: 100.0)


def test_a_client_starts_once_and_stops_once() -> None:
    member = Member()
    with member:
        member.start()
        assert member.is_running
        member.check_running()
    member.stop()
    assert member.told == ["begin", 107.0]
    assert member.client_id.endswith("@one")


def test_a_failed_start_can_be_retried() -> None:
    member = Member(fails=1)
    with pytest.raises(ClientError, match="no name server"):
        member.start()
    assert not member.is_running
    member.start()
    member.stop(1.5)
    assert member.told == ["begin", 101.5]


def test_a_with_block_that_fails_to_start_leaves_nothing_open() -> None:
    member = Member(fails=1)
    with pytest.raises(ClientError, match="no name server"):
        member.__enter__()
    with pytest.raises(ClientClosed, match="the member was stopped"):
        member.start()
    assert member.told == []


def test_errors_name_why_a_member_does_not_run() -> None:
    member = Member()
    with pytest.raises(ClientClosed, match="start it"):
        member.check_running()
    member.stop()
    with pytest.raises(ClientClosed, match="make a new one"):
        member.check_running()


@pytest.mark.parametrize(
    "ended, offsets, line",
    [
        (3, None, "client stopped kind=member group=Anybody took_ms=0 sends=3 sends_left=0"),
        (1, 4, "client stopped kind=member group=Anybody took_ms=0 sends=3 sends_left=2 offsets=4"),
    ],
)
def test_a_stop_logs_the_work_it_waited_for(
    ended: int, offsets: int | None, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Work that is left is a warning."""
    caplog.set_level(logging.INFO, "troupemq.client")
    with Member() as member:
        member.sends, member.ended, member.offsets = 3, ended, offsets
    (record,) = [each for each in caplog.records if each.message.startswith("client stopped")]
    assert " ".join(record.message.split()) == line
    assert record.levelname == ("INFO" if ended == 3 else "WARNING")


@pytest.mark.parametrize("finishes, sends", [(True, 1), (True, 0), (False, 1)])
def test_the_end_of_the_process_waits_only_for_work_that_would_be_lost(
    finishes: bool, sends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Member, "finishes_at_exit", finishes)
    with Member() as member:
        member.sends = sends
        new = Member()
        lifecycle._finish_work()
        assert member.is_running is not (finishes and sends > 0)
        new.check_not_stopped()


def test_a_consumer_that_ends_with_its_program_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A script without a wait behind the start ended at once, without a word."""
    monkeypatch.setattr(Member, "exit_hint", "let the main thread wait")
    with Member():
        lifecycle._finish_work()
    (record,) = caplog.records
    said = "running at exit kind=member group=Anybody hint='let the main thread wait'"
    assert " ".join(record.message.split()) == said
    lifecycle._finish_work()
    assert len(caplog.records) == 1 and PushConsumer.exit_hint


@pytest.mark.slow
def test_members_of_a_forked_process_refuse_all_calls_and_stop_at_once() -> None:
    """An iteration of a consumer span there for ever, for each receive returned nothing."""
    with Member() as running:
        running.sends = 1
        new = Member()

        def asked() -> str:
            texts = []
            for call in (running.check_running, running.check_not_stopped, new.start):
                with pytest.raises(ClientClosed) as refused:
                    call()
                texts.append(f"{refused.value}\n")
            running.stop()
            return f"{''.join(texts)}{running.told}"

        refusal = "the member belongs to the process that was forked: make a new one\n"
        assert told_by_child(asked) == f"{refusal * 3}['begin']"
        running.check_running()
