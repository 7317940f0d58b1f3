"""Figures of messages in flight."""

from actors.receipts.figures import InFlightFigures, ReceiptFigures, in_flight_of
from actors.receipts.ledger import NEVER_MS, Delivery, Entry, EntryState, Holder, Ledger


def test_figures_name_holders_with_their_receipts_and_start_times() -> None:
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
    found = in_flight_of([ledger, other], 1_000.0, 1_700_000_000_000)
    clients = {"client 0": 1, "client 1": 1}
    wanted = InFlightFigures(2, 1, 1_699_999_999_000, 1, 1, clients, {3: 2})
    assert found == {("g", "T"): wanted}
    assert ReceiptFigures(found).count == 2
