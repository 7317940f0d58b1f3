"""Tests of reclaimed messages alone: no socket, no thread, and answers that the test gives."""

from collections.abc import Callable

from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.pop import ChangeInvisibleTimeHeader, ChangeInvisibleTimeResponseHeader
from protocol.message import MessageRecord
from protocol.properties import ORIGIN_MESSAGE_ID, format
from protocol.receipts import NORMAL_KIND, RETRY_KIND, ReceiptHandle
from tests.troupemq.client.receiving.pop_broker import HOST
from troupemq.client.connection.calls import drive
from troupemq.client.errors import ClientError, ConnectionFailed
from troupemq.client.message import MessageQueue, view_of
from troupemq.client.receiving.delivery import DeliveryState, HeldMessage
from troupemq.client.receiving.flows import Ask, Flow, Flows, Pause, ReceiveTerms, Several, Wanted
from troupemq.client.receiving.receipt import Receipt
from troupemq.client.receiving.reclaiming import Reclaimer

Answer = RemotingCommand | ClientError | None
Answers = Callable[[Ask], Answer]


def receipt(
    offset: int, *, broker: str = "b", kind: str = NORMAL_KIND, origin: str = ""
) -> Receipt:
    properties = {ORIGIN_MESSAGE_ID: origin} if origin else {}
    record = MessageRecord(
        "T",
        b"body",
        format(properties),
        queue_offset=offset,
        physical_offset=offset,
        born_host=HOST,
        store_host=HOST,
    )
    handle = ReceiptHandle(offset, 1, 60_000, 0, kind, broker, 0, offset)
    return Receipt(view_of(record, MessageQueue("T", broker, 0)), "T", handle, None)


def held_again(ask: Ask) -> RemotingCommand:
    handle = ReceiptHandle.parse(ChangeInvisibleTimeHeader.decode(ask.command.fields).extra_info)
    fields = ChangeInvisibleTimeResponseHeader(
        pop_time_ms=handle.pop_time_ms, hold_with_connection=True
    )
    return ask.command.answer(fields=fields.encode())


def given_back(ask: Ask) -> RemotingCommand:
    return ask.command.answer(ResponseCode.NO_MESSAGE)


def unreachable(ask: Ask) -> ClientError:
    return ConnectionFailed("no route")


class Bench:
    """A consumer's messages, and brokers that answer in turn as `answers` say, then as the last."""

    def __init__(self, *receipts: Receipt, answers: tuple[Answers, ...] = (held_again,)) -> None:
        self.held = {each: HeldMessage(None, each) for each in receipts}
        self.reclaimer = Reclaimer(
            Flows(ReceiveTerms("g", 60_000, True, False, 0, 16), lambda: 0.0), self.held
        )
        self.rounds: list[list[int]] = []
        """Offsets that were asked for together."""
        self.pauses_ms: list[float] = []
        self.while_asked: Callable[[], object] = lambda: None
        self._answers = answers

    def lose(self, broker: str = "b") -> None:
        flow = self.reclaimer.lose(broker)
        assert flow is not None
        self.run(flow)

    def run(self, flow: Flow[None]) -> None:
        drive(flow, self._carry_out)

    def _carry_out(self, wanted: Wanted) -> list[Answer] | None:
        if isinstance(wanted, Pause):
            self.pauses_ms.append(wanted.ms)
            return None
        assert isinstance(wanted, Several) and wanted.wait_all
        headers = [ChangeInvisibleTimeHeader.decode(each.command.fields) for each in wanted.asks]
        assert all(each.hold_with_connection for each in headers)
        answer = self._answers[min(len(self.rounds), len(self._answers) - 1)]
        self.rounds.append([each.offset for each in headers])
        self.while_asked()
        return [answer(ask) for ask in wanted.asks]


def busy(ask: Ask) -> RemotingCommand:
    return ask.command.answer(ResponseCode.SYSTEM_BUSY)


def test_messages_are_asked_for_until_the_broker_answers() -> None:
    bench = Bench(receipt(1), receipt(2), answers=(unreachable, busy, held_again))
    bench.lose()
    assert bench.rounds == [[1, 2]] * 3
    assert bench.pauses_ms == [50, 100]
    assert all(each.expires_s is None and each.handle.pop_time_ms == 1 for each in bench.held)


def test_pauses_are_bounded_and_settled_messages_end_them() -> None:
    bench = Bench(receipt(1), answers=(unreachable,))
    bench.while_asked = lambda: bench.held.clear() if len(bench.rounds) == 20 else None
    bench.lose()
    assert len(bench.rounds) == 20 and max(bench.pauses_ms) == 500


def test_only_messages_of_that_broker_that_its_connection_held_are_asked_for() -> None:
    timed = receipt(1)
    timed.expires_s = 60.0
    bench = Bench(timed, receipt(2, broker="other"), receipt(3))
    bench.lose()
    assert bench.rounds == [[3]]
    assert bench.reclaimer.lose("name server") is None


def test_many_messages_are_asked_for_in_turn() -> None:
    bench = Bench(*map(receipt, range(80)))
    bench.lose()
    assert [len(each) for each in bench.rounds] == [32, 32, 16] and bench.pauses_ms == []


def test_connection_that_ends_meanwhile_starts_nothing_beside() -> None:
    """A proxy without a broker accepts each connection, and ends it."""
    bench = Bench(receipt(1), receipt(2))
    flows = []

    def lose_again() -> None:
        if len(bench.rounds) == 1:
            flows.append(bench.reclaimer.lose("b"))

    bench.while_asked = lose_again
    bench.lose()
    assert flows == [None] and bench.rounds == [[1, 2], [1, 2]]


def test_connection_that_ends_again_and_again_is_no_busy_loop() -> None:
    bench = Bench(receipt(1))
    for _ in range(3):
        bench.lose()
    assert bench.rounds == [[1]] * 3 and bench.pauses_ms == [500, 500]


def test_message_that_is_being_settled_is_asked_for_only_if_that_fails() -> None:
    """A retry whose new handle has just come would else be held again, for days."""
    mine = receipt(1)
    bench = Bench(mine, receipt(2))
    bench.held[mine].state = DeliveryState.BUSY

    def fail() -> None:
        bench.held[mine].state = DeliveryState.OPEN

    bench.while_asked = fail
    bench.lose()
    assert bench.rounds == [[2], [1]]


def test_delivery_goes_on_when_its_message_comes_again() -> None:
    mine = receipt(1)
    bench = Bench(mine, answers=(given_back,))
    bench.lose()
    assert bench.rounds == [[1]]
    again = receipt(7, kind=RETRY_KIND, origin=mine.message.offset_message_id)
    assert bench.reclaimer.goes_on(again)
    assert mine.handle == again.handle and mine.stored_topic("g") == "%RETRY%g_T"
    assert bench.reclaimer.goes_on(receipt(8, kind=RETRY_KIND, origin=mine.origin)), "once more"
    bench.reclaimer.forget(mine)
    assert not bench.reclaimer.goes_on(again)


def test_other_messages_are_new_ones() -> None:
    mine, settled = receipt(1), receipt(2)
    bench = Bench(mine, settled, answers=(given_back,))
    own = mine.message.offset_message_id
    assert not bench.reclaimer.goes_on(receipt(7, kind=RETRY_KIND, origin=own)), "before a loss"
    bench.lose()
    assert not bench.reclaimer.goes_on(receipt(3))
    assert not bench.reclaimer.goes_on(receipt(4, origin=own)), "a producer could say so"
    bench.reclaimer.forget(settled)
    assert not bench.reclaimer.goes_on(receipt(2))
    bench.held[mine].state = DeliveryState.BUSY
    assert not bench.reclaimer.goes_on(receipt(1)), "it is being settled by its former handle"
