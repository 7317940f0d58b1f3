"""Figures of messages in flight."""

from actors.receipts.figures import InFlightFigures, ReceiptFigures, Survey
from actors.receipts.ledger import NEVER_MS, Delivery, Entry, EntryState, Holder, Ledger


def test_figures_show_clients_numbers_and_the_oldest_receive() -> None:
    ledger, other = Ledger("g", "T", 3, is_retry=False), Ledger("g", "U", 0, is_retry=False)
    for number, deadline_ms in enumerate((NEVER_MS, 5_000.0)):
        holder = Holder(number, f"client {number}")
        delivery = Delivery(
            ledger, 1, [number], deadline_ms=deadline_ms, peer=holder, since_ms=100.0 * number
        )
        entry = Entry(ledger, number, 0, EntryState.HELD, number)
        entry.delivery = delivery
        ledger.take(entry)
    ledger.keep(Entry(ledger, 2, 0, EntryState.KEPT, 0), "V")
    survey = Survey([ledger, other])
    assert survey.go_on(1_000)
    found = survey.figures(1_000.0, 1_700_000_000_000)
    clients = {"client 0": 1, "client 1": 1}
    wanted = InFlightFigures(2, 1, 1_699_999_999_000, 1, 1, clients, {3: 2})
    assert found == {("g", "T"): wanted}
    assert ReceiptFigures(found).count == 2


def test_survey_looks_at_a_limited_number_of_messages_at_a_time() -> None:
    """200,000 messages that were received one by one took 0.15 s, and all others waited."""
    ledgers = []
    for queue_id in range(3):
        ledger = Ledger("g", "T", queue_id, is_retry=False)
        for offset in range(10):
            holder = Holder(1, "client")
            ledger.hand_out(
                Delivery(ledger, 1, [offset], deadline_ms=NEVER_MS, peer=holder, since_ms=5.0)
            )
        ledgers.append(ledger)
    survey = Survey(ledgers)
    assert [survey.go_on(10) for _ in range(3)] == [False, False, True]
    (figures,) = survey.figures(10.0, 1_000).values()
    assert (figures.count, figures.with_connection, figures.oldest_ms) == (30, 30, 995)
    assert (figures.clients, figures.queues) == ({"client": 30}, {0: 10, 1: 10, 2: 10})
