"""Transactions under crashes and power cuts, and in great number."""

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from time import thread_time
from typing import Any

import pytest

from actors.transactions.transactions import Transactions
from protocol.command import RemotingCommand
from protocol.message import MessageRecord
from protocol.property_shapes import find_pairs
from tests.support.brokers import STORE, send_command
from tests.support.fake_disk import FakeDisk
from tests.support.transacting import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Producer,
    broker,
    end_command,
    round_of_checks,
    sending,
)

SYNC = replace(STORE, flush_disk_type="SYNC_FLUSH")
LARGE = replace(STORE, commit_log_file_bytes=1 << 24, consume_queue_file_bytes=200_000)


class Shop:
    """Producers that know the outcome of each transaction, whatever becomes of their broker."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.made = broker(seed, store=SYNC)
        self.producers = [Producer(self.made, port=port) for port in (7, 8)]
        self.outcomes: dict[str, int] = {}
        self.stored: dict[str, MessageRecord] = {}
        """Half messages whose sends were answered."""

    def send(self, number: int) -> None:
        key = f"K{number}"
        self.outcomes[key] = self.random.choice((COMMIT, ROLLBACK))
        options = sending(key, queue_id=number % 4, born_timestamp=self.made.clock.now_ms())

        def taken(answer: RemotingCommand) -> None:
            if answer.code == 0:
                self.stored[key] = self.made.stored(answer)

        self.made.client.start(send_command(**options), taken)

    def end_some(self) -> None:
        """Verdicts straight after the send; some come twice, some never."""
        for key, record in self.stored.items():
            for _ in range(self.random.choice((0, 0, 0, 1, 2))):
                self.made.client.start(end_command(record, self.outcomes[key]))

    def answer_questions(self, *, always: bool = False) -> None:
        for producer in self.producers:
            for question in producer.questions():
                outcome = self.outcomes[question.header.msg_id or ""]
                if not always and self.random.random() < 0.3:
                    outcome = UNKNOWN
                producer.client.start(end_command(question, outcome, oneway=True))

    def something_dies(self) -> None:
        made, chance = self.made, self.random.random()
        if chance < 0.75:
            return
        if chance < 0.95:
            made.crash()
            assert isinstance(made.disk, FakeDisk)
            is_power_cut = self.random.random() < 0.5
            made.disk = made.disk.crashed(made.seed) if is_power_cut else made.disk.killed()
        else:
            made.stop()
            made.start_ms = made.system.clock.now_ms()
        made.start()
        made.system.advance(2000)
        self.producers = [Producer(made, port=port) for port in (7, 8)]


@pytest.mark.trial(short=4, long=500)
def test_what_was_promised_is_kept_whatever_dies(seed: int) -> None:
    """Each commit is delivered once, no rollback ever, and what is pending stays so."""
    shop = Shop(seed)
    for number in range(24):
        shop.send(number)
        shop.made.system.advance(shop.random.choice((0, 5, 300, 30_000)))
        shop.end_some()
        shop.made.system.advance(shop.random.choice((0, 0, 1, 500)))
        shop.answer_questions()
        shop.something_dies()
        for producer in shop.producers:
            producer.beat()
    for _ in range(4):
        round_of_checks(shop.made)
        shop.answer_questions(always=True)
        for producer in shop.producers:
            producer.beat()
    seen = Counter(
        dict(find_pairs(message.properties))[b"UNIQ_KEY"].decode()
        for queue_id in range(4)
        for message in shop.made.messages(queue_id=queue_id)
    )
    for key, outcome in shop.outcomes.items():
        if outcome == ROLLBACK:
            assert seen[key] == 0, key
        elif key in shop.stored:
            assert seen[key] == 1, key
        else:
            assert seen[key] <= 1, key
    assert shop.made.broker.store.transaction_table.pending_count == 0
    shop.made.stop()


def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each handler of Transactions takes from now on, in seconds."""
    times: list[float] = []

    def measured(handler: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            started = thread_time()
            handler(*arguments)
            times.append(thread_time() - started)

        return call

    for kind, handler in [*Transactions.handlers.items()]:
        monkeypatch.setitem(Transactions.handlers, kind, measured(handler))
    return times


def test_thousands_of_pending_ones_are_checked_without_holding_the_loop(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    count = 3000
    made = broker(store=LARGE)
    producer = Producer(made)
    started_ms = made.clock.now_ms()
    for first in range(0, count, 500):
        answers: list[RemotingCommand] = []
        for number in range(first, first + 500):
            options = sending(f"{number}", born_timestamp=started_ms)
            made.client.start(send_command(**options), answers.append)
        made.system.run_until(lambda: len(answers) == 500)  # noqa: B023
    times = timed(monkeypatch)
    gc.disable()  # its pauses are the whole process's, and this one has the disk in memory
    try:
        round_of_checks(made)
    finally:
        gc.enable()
    questions = producer.questions()
    tell(
        f"{count} checks: {1e6 * sum(times) / count:.0f} us each in Transactions,"
        f" longest step {1e3 * max(times):.1f} ms"
    )
    assert [question.header.msg_id for question in questions] == [f"{n}" for n in range(count)]
    assert max(times) < 0.05
    for question in questions:
        producer.client.start(end_command(question, COMMIT, oneway=True))
    made.system.drain()
    assert len(made.messages()) == count
    assert made.broker.store.transaction_table.pending_count == 0
    made.stop()
