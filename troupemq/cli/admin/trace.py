"""Bodies of the trace topic: what clients note about messages.

A body holds records that end with the character 2; the fields of a record are separated by the
character 1, the first one names its kind:

    Pub             time, region, group, topic, message id, tags, keys, store host, body bytes,
                    cost ms, message type, broker's id, success, client host
    SubBefore       time, region, group, request id, message id, retries, keys, client host
    SubAfter        request id, message id, cost ms, success, keys, context code, time, group
    EndTransaction  time, region, group, topic, message id, tags, keys, store host, message type,
                    client host, transaction id, state, from a check

Older clients leave the last fields out.

Source: client/trace/TraceDataEncoder.java.
"""

from collections.abc import Iterator

from troupemq.cli.admin.output import Row, Time
from troupemq.numbers import whole

FIELD, RECORD = "\x01", "\x02"

_FIELDS = {
    "Pub": (
        "time_ms",
        "region",
        "group",
        "topic",
        "message_id",
        "tags",
        "keys",
        "host",
        "body_bytes",
        "cost_ms",
        "message_type",
        "offset_message_id",
        "success",
        "client",
    ),
    "SubBefore": (
        "time_ms",
        "region",
        "group",
        "request_id",
        "message_id",
        "retries",
        "keys",
        "client",
    ),
    "SubAfter": (
        "request_id",
        "message_id",
        "cost_ms",
        "success",
        "keys",
        "context_code",
        "time_ms",
        "group",
    ),
    "EndTransaction": (
        "time_ms",
        "region",
        "group",
        "topic",
        "message_id",
        "tags",
        "keys",
        "host",
        "message_type",
        "client",
        "transaction_id",
        "state",
        "from_check",
    ),
}
_SHOWN = ("group", "client", "cost_ms", "success", "retries", "state", "host")


def events_of(body: bytes) -> Iterator[Row]:
    """The records of a trace message that can be understood, each with the same keys.

    A time that is no number stays the text that it is.
    """
    for record in body.decode(errors="replace").split(RECORD):
        kind, *values = record.split(FIELD)
        names = _FIELDS.get(kind)
        if names is None:
            continue
        found = dict(zip(names, values, strict=False))
        if "message_id" not in found:
            continue
        time = whole(found.get("time_ms"))
        yield {
            "kind": kind,
            "message_id": found["message_id"],
            "time_ms": found.get("time_ms") or None if time is None else Time(time),
            **{name: found.get(name) for name in _SHOWN},
        }
