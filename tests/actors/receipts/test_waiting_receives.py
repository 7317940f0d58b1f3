"""Receives that wait, through a whole broker: for messages, or for a compiled expression."""

from tests.actors.receipts.test_receipts import bodies, numbered, receive
from tests.support.pulls import broker
from tests.support.receiving import receive_command


def test_receive_takes_nothing_if_its_connection_closes_before_it_is_compiled() -> None:
    made = broker(property_filter_enable=True)
    numbered(made, 1)
    closed = made.new_client(2)
    expression = "closed_before_it_is_compiled IS NULL"
    closed.start(receive_command(hold=True, expression=expression, expression_type="SQL92"))
    closed.close()
    made.system.advance(100)
    assert bodies(receive(made)) == [b"0"]
