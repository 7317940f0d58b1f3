"""Tests of actors/transactions/half_messages.py: the list for operators."""

from protocol.bodies_own import OpenTransactions
from protocol.codes import RequestCode
from tests.support.brokers import SimulatedBroker
from tests.support.peers import request
from tests.support.transacting import COMMIT, GROUP, end_command, half


def listed(made: SimulatedBroker, **fields: str) -> OpenTransactions:
    answer = made.ask(request(RequestCode.GET_OPEN_TRANSACTIONS, fields))
    assert answer.code == 0
    return OpenTransactions.decode(answer.body)


def test_an_open_transaction_is_listed_until_it_is_settled() -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    assert listed(made) == OpenTransactions()
    first, second = half(made, "K1"), half(made, "K2")
    made.system.advance(1000)
    found = listed(made)
    assert found.count == 2
    assert [each.message_id for each in found.transactions] == ["K1", "K2"]
    shown = found.transactions[0]
    assert (shown.producer_group, shown.topic) == (GROUP, "Topic")
    assert shown.physical_offset == first.physical_offset
    assert shown.born_timestamp == first.born_timestamp
    made.ask(end_command(first, COMMIT))
    made.system.advance(1000)
    left = listed(made).transactions
    assert [each.physical_offset for each in left] == [second.physical_offset]


def test_many_open_transactions_are_listed_in_several_answers() -> None:
    made = SimulatedBroker(2)
    made.make_topic()
    halves = [half(made, f"K{number}") for number in range(5)]
    made.system.advance(1000)
    first = listed(made, maxCount="3")
    assert (first.count, len(first.transactions)) == (5, 3)
    rest = listed(made, maxCount="3", afterOffset=str(first.transactions[-1].physical_offset))
    assert [each.physical_offset for each in rest.transactions] == [
        each.physical_offset for each in halves[3:]
    ]
    assert listed(made, maxCount="-1").transactions == []


def test_an_unreadable_half_message_is_omitted() -> None:
    made = SimulatedBroker(3)
    made.make_topic()
    first = half(made, "K1")
    half(made, "K2")
    made.system.advance(1000)
    made.broker.store.damage.add(first.physical_offset, first.physical_offset + 1, "a test")
    found = listed(made)
    assert (found.count, [each.message_id for each in found.transactions]) == (2, ["K2"])
