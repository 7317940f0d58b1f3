"""Tests of the gathering of acknowledgements."""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import cast

import pytest

from tests.troupemq.fake_server import WAIT_S
from troupemq.client.errors import ClientError, ConnectionFailed
from troupemq.client.receiving.delivery import AckGathering
from troupemq.client.receiving.receipt import Receipt


class Sends:
    """Takes acknowledgements; the first waits until the test lets it go on."""

    def __init__(self) -> None:
        self.sent: list[Sequence[Receipt]] = []
        self.begun, self.may_end = Event(), Event()
        self.fails: BaseException | None = None
        self.gone: Collection[Receipt] = ()

    def __call__(self, receipts: Sequence[Receipt]) -> Collection[Receipt]:
        self.sent.append(receipts)
        if len(self.sent) == 1:
            self.begun.set()
            assert self.may_end.wait(WAIT_S)
            return ()
        if self.fails is not None:
            raise self.fails
        return self.gone


def receipt(number: int) -> Receipt:
    return cast(Receipt, number)


def gathered(sends: Sends) -> list[Collection[Receipt] | BaseException | None]:
    """Acknowledge 0, and 1 to 4 on as many threads while 0 is on its way."""
    gathering = AckGathering(sends)
    with ThreadPoolExecutor(5) as threads:
        first = threads.submit(gathering.ack, "b", [receipt(0)])
        assert sends.begun.wait(WAIT_S)
        others = [threads.submit(gathering.ack, "b", [receipt(each)]) for each in range(1, 5)]
        while len(gathering._queues["b"].turns) < 4:
            pass
        sends.may_end.set()
        assert first.result(WAIT_S) == []
        return [each.exception(WAIT_S) or each.result(WAIT_S) for each in others]


def test_acknowledgements_that_come_meanwhile_share_the_next_request() -> None:
    sends = Sends()
    assert gathered(sends) == [[]] * 4
    assert [sorted(map(int, cast(Sequence[int], each))) for each in sends.sent] == [
        [0],
        [1, 2, 3, 4],
    ]


def test_each_call_learns_of_its_own_messages() -> None:
    sends = Sends()
    sends.gone = [receipt(3)]
    assert gathered(sends) == [[], [], [receipt(3)], []]


def test_a_failure_reaches_each_call() -> None:
    sends = Sends()
    sends.fails = ConnectionFailed("b: connection refused")
    found = gathered(sends)
    assert [type(each) for each in found] == [ConnectionFailed] * 4
    assert len({id(each) for each in found}) == 4


def test_an_interrupted_thread_does_not_acknowledge_for_the_others() -> None:
    sends = Sends()
    sends.fails = KeyboardInterrupt()
    found = gathered(sends)
    assert sorted(type(each).__name__ for each in found) == [
        "ClientError",
        "ClientError",
        "ClientError",
        "KeyboardInterrupt",
    ]


def test_another_broker_is_not_waited_for() -> None:
    sends = Sends()
    gathering = AckGathering(sends)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(gathering.ack, "b", [receipt(0)])
        assert sends.begun.wait(WAIT_S)
        assert gathering.ack("other", [receipt(1)]) == []
        sends.may_end.set()
        assert first.result(WAIT_S) == []


def test_a_single_call_raises_its_error() -> None:
    gathering = AckGathering(Sends())
    gathering._send = _refuse
    with pytest.raises(ClientError, match="refused"):
        gathering.ack("b", [receipt(0)])


def _refuse(receipts: Sequence[Receipt]) -> Collection[Receipt]:
    raise ClientError("refused")
