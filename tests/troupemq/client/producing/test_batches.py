"""Rules and sizes of batches."""

from itertools import pairwise

import pytest

from protocol.batch import decode_batch
from troupemq.client.errors import MessageIllegal
from troupemq.client.message import Message
from troupemq.client.producing import batches
from troupemq.client.producing.batches import batch_parcel, split_batch

ID = "0" * 32


def test_batches_fill_a_request_and_keep_the_order() -> None:
    messages = [Message("T", bytes(number), keys=str(number)) for number in range(1, 300, 7)]
    found = split_batch(messages, 1000)
    assert [message for batch in found for message in batch] == messages
    sizes = [len(batch_parcel(batch, lambda: ID).body) for batch in found]
    assert max(sizes) <= 1000
    for batch, following in pairwise(found):  # one more would not fit
        assert len(batch_parcel([*batch, following[0]], lambda: ID).body) > 1000


def test_a_batch_of_the_maximum_length_is_accepted() -> None:
    messages = [Message("T", bytes(50))] * 4
    size = len(batch_parcel(messages, lambda: ID).body)
    assert [len(batch) for batch in split_batch(messages, size)] == [4]
    assert [len(batch) for batch in split_batch(messages, size - 1)] == [3, 1]


def test_no_batch_has_more_messages_than_a_broker_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "DECODED_MAX", 3)
    assert [len(each) for each in split_batch([Message("T", b"x")] * 7, 16 << 20)] == [3, 3, 1]


def test_a_message_longer_than_any_batch_is_refused() -> None:
    with pytest.raises(MessageIllegal, match="at most 100"):
        split_batch([Message("T", bytes(100))], 100)


def test_no_messages_give_no_batches() -> None:
    assert split_batch([]) == []


def test_a_batch_is_not_compressed() -> None:
    parcel = batch_parcel([Message("T", b"x" * 9000)], lambda: ID)
    assert parcel.sys_flag == 0
    assert [each for each, _, _ in decode_batch(parcel.body)] == [b"x" * 9000]


@pytest.mark.parametrize(
    "message",
    [
        Message("%RETRY%g", b"x"),
        Message("T", b"x", delay_level=1),
        Message("T", b"x", system_properties={"TRAN_MSG": "true"}),
    ],
)
def test_messages_not_allowed_in_a_batch_are_refused(message: Message) -> None:
    with pytest.raises(MessageIllegal):
        batch_parcel([message], lambda: ID)
