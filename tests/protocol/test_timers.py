"""The mark of a pending timer, and recall handles."""

from base64 import urlsafe_b64encode

import pytest

from protocol.timers import DUE_BYTES, INVALID_HANDLE, RecallHandle, due_of, due_property


def test_due_time_is_read_from_the_end_of_a_text_only() -> None:
    end = due_property(1_700_000_000_123)
    assert len(end) == DUE_BYTES
    assert due_of(b"DELAY\x011" + end) == due_of(memoryview(end)) == 1_700_000_000_123
    for other in (b"", end[1:], end + b"\x02", end + b"\x02A\x01b", b"X" * 100, end[:-1] + b"x"):
        assert due_of(other) == 0


def test_handle_is_that_of_5x() -> None:
    handle = RecallHandle("Topic", "broker-a", 1_700_000_000_000, "ID")
    text = urlsafe_b64encode(b"v1 Topic broker-a 1700000000000 ID").decode()
    assert handle.encode() == text
    assert RecallHandle.decode(text) == RecallHandle.decode(text.rstrip("=")) == handle


@pytest.mark.parametrize(
    "text", ["", "djEg", "%", "é", "A" * 5_000, "djIgYSBiIDEgYw==", "====", "djEgYSBiIDE="]
)
def test_text_that_is_no_handle_is_refused_with_the_remark_of_5x(text: str) -> None:
    with pytest.raises(ValueError, match=INVALID_HANDLE):
        RecallHandle.decode(text)


def test_handle_without_a_number_has_a_time_that_no_timer_has() -> None:
    text = urlsafe_b64encode(b"v1 Topic broker-a x ID").decode()
    assert RecallHandle.decode(text).due_ms == -1
