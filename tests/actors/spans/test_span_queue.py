"""Tests of actors/spans/span_queue.py: what the loop notes, and what it drops."""

import pytest

from actors.network.hooks import PullContext, SendContext
from actors.spans.span_queue import DeliveredNote, Sampling, SpanQueue, StoredNote, carried
from protocol.span_names import TraceParent, parse_traceparent

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = PARENT[:-2] + "00"


def sent(properties: str = "", ids: str = "A") -> SendContext:
    found = SendContext("pg", "T", 4, properties.encode(), 0, "192.0.2.7:5", 0)
    found.message_id, found.success = ids, True
    return found


def noted(queue: SpanQueue, context: SendContext) -> StoredNote | DeliveredNote | None:
    queue.before_send(context)
    queue.after_send(context)
    return queue.take()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (PARENT, TraceParent(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7, True)),
        (UNSAMPLED, TraceParent(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0xF067AA0BA902B7, False)),
        (
            "cc" + PARENT[2:] + "-later",
            TraceParent(
                0x4BF92F3577B34DA6A3CE929D0E0E4736,
                *(
                    0xF067AA0BA902B7,
                    True,
                ),
            ),
        ),
        (PARENT + "-more", None),
        ("ff" + PARENT[2:], None),
        (PARENT.upper(), None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01", None),
        ("", None),
    ],
)
def test_a_traceparent_is_parsed_as_w3c_defines_it(text: str, wanted: TraceParent | None) -> None:
    assert parse_traceparent(text) == wanted


def test_a_traceparent_is_found_at_any_position_under_its_exact_name() -> None:
    for text in (f"traceparent\x01{PARENT}", f"a\x01b\x02traceparent\x01{PARENT}\x02c\x01d\x02"):
        assert carried(text.encode()) == parse_traceparent(PARENT)
    for text in (f"xtraceparent\x01{PARENT}\x02", "traceparent\x01\x02", "", "traceparent\x01\xff"):
        assert carried(text.encode("latin-1")) is None


def test_only_sampled_traces_are_recorded() -> None:
    queue = SpanQueue(1.0, 100, iter(range(100, 1000, 10)).__next__)
    assert noted(queue, sent()) is None
    assert noted(queue, sent(f"traceparent\x01{UNSAMPLED}")) is None
    found = noted(queue, sent(f"traceparent\x01{PARENT}"))
    assert isinstance(found, StoredNote) and found.parent == parse_traceparent(PARENT)
    assert found.ended_ns > found.begun_ns and not found.failure
    batch = noted(queue, sent(ids="A,B"))
    assert isinstance(batch, StoredNote) and batch.parent is None, "its messages say it"
    refused = sent(f"traceparent\x01{PARENT}")
    refused.success, refused.code = False, 2
    failed = noted(queue, refused)
    assert isinstance(failed, StoredNote) and failed.failure == "2"


def test_the_ratio_samples_by_trace_id_only() -> None:
    low, high = TraceParent(1, 1, True), TraceParent((1 << 64) - 1, 1, True)
    assert [Sampling(ratio).takes(low) for ratio in (0.0, 0.5, 1.0)] == [False, True, True]
    assert [Sampling(ratio).takes(high) for ratio in (0.0, 0.5, 1.0)] == [False, False, True]


def test_a_pulls_span_has_its_messages_and_excludes_the_wait() -> None:
    queue = SpanQueue(1.0, 100, iter((10, 20, 30, 40, 50)).__next__)
    for held, begun_ns in ((False, 10), (True, 40)):
        pull = PullContext("g", "T", 0, "192.0.2.7:5", 0, 32)
        queue.before_pull(pull)
        queue.after_pull(pull)
        assert queue.take() is None, "it has brought nothing"
        pull.held, pull.success, pull.runs = held, True, [(0, 99)]
        queue.after_pull(pull)
        found = queue.take()
        assert isinstance(found, DeliveredNote)
        assert (found.runs, found.begun_ns) == ([(0, 99)], begun_ns)


def test_spans_over_the_queue_limit_are_counted() -> None:
    queue = SpanQueue(1.0, 3)
    for _ in range(5):
        queue.after_send(sent(f"traceparent\x01{PARENT}"))
    assert (queue.waiting_count, queue.dropped_count) == (3, 2)


def test_a_note_with_a_long_list_of_ids_counts_as_several() -> None:
    """Two million ids of a batch made ten thousand notes 20 GiB while the collector was away."""
    queue = SpanQueue(1.0, 5)
    long = ",".join(["A" * 32] * 1_000)
    for _ in range(3):
        queue.after_send(sent(ids=long))
    assert (queue.waiting_count, queue.dropped_count) == (1, 2)
    assert queue.take() is not None and queue.take() is None
    for _ in range(6):
        queue.after_send(sent(ids="A,B"))
    assert (queue.waiting_count, queue.dropped_count) == (5, 3)


def test_one_note_is_taken_however_long_it_is() -> None:
    queue = SpanQueue(1.0, 5)
    queue.after_send(sent(ids="A," * 1_000_000))
    assert (queue.waiting_count, queue.dropped_count) == (1, 0)
