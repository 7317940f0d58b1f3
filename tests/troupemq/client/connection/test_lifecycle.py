"""A producer or consumer starts once and stops once, in any order of calls."""

import pytest

from troupemq.client.connection import lifecycle
from troupemq.client.connection.lifecycle import ClientMember
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

    def _prepare(self) -> None:
        if self.fails:
            self.fails -= 1
            raise ClientError("no name server")

    def _begin(self) -> None:
        self.told.append("begin")

    def _finish(self, deadline_s: float) -> None:
        self.told.append(deadline_s)


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
