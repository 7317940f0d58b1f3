"""A commit log of its own, and the transaction table that follows it."""

import pytest

from storage.transactions.table import TransactionTable
from tests.support.transactions import CONFIG, TransactionLog, table_of
from troupemq.testing.fake_disk import FakeDisk


@pytest.fixture
def log() -> TransactionLog:
    return TransactionLog(FakeDisk(), CONFIG)


@pytest.fixture
def table(log: TransactionLog) -> TransactionTable:
    made = table_of(log)
    assert made.load(0, 0) == ""
    return made
