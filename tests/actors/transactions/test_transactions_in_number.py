"""Thousands of open transactions at a time."""

import gc
from collections.abc import Callable
from dataclasses import replace
from time import thread_time
from typing import Any

import pytest

from actors.transactions.transactions import Transactions
from protocol.frame import RemotingCommand
from tests.support.brokers import STORE, send_command
from tests.support.transacting import (
    COMMIT,
    broker,
    end_command,
    producing,
    questions,
    round_of_checks,
    sending,
)

LARGE = replace(STORE, commit_log_file_bytes=1 << 24, consume_queue_file_bytes=200_000)


def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that collects the duration of each handler of Transactions, in seconds."""
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


@pytest.mark.heavy
def test_thousands_of_open_transactions_are_checked_without_blocking_the_loop(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    count = 3000
    made = broker(store=LARGE)
    producer = producing(made)
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
    asked = questions(producer)
    tell(
        f"{count} checks: {1e6 * sum(times) / count:.0f} us each in Transactions,"
        f" longest step {1e3 * max(times):.1f} ms"
    )
    assert [question.header.msg_id for question in asked] == [f"{n}" for n in range(count)]
    assert max(times) < 0.05
    for question in asked:
        producer.start(end_command(question, COMMIT, oneway=True))
    made.system.drain()
    assert len(made.messages()) == count
    assert made.broker.store.transaction_table.pending_count == 0
