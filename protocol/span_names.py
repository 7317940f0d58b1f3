"""Names of message spans: OpenTelemetry's for messaging, with those for RocketMQ.

Their status is Development: RocketMQ's begin with `messaging.rocketmq.` through 1.43, and with
`rocketmq.` in the newest registry.  OTEL_SEMCONV_STABILITY_OPT_IN chooses: `messaging` the newest,
`messaging/dup` both, anything else the former.  And `traceparent`, by which a message carries the
span that made it, as W3C's Trace Context has it:

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    version  trace id                   span id          flags: bit 0 is "sampled"
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TRACEPARENT, TRACESTATE, BAGGAGE = CARRIED = ("traceparent", "tracestate", "baggage")
"""Message properties that carry a trace."""

OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
SYSTEM, ROCKETMQ = "messaging.system", "rocketmq"
OPERATION_NAME, OPERATION_TYPE = "messaging.operation.name", "messaging.operation.type"
DESTINATION, PARTITION = "messaging.destination.name", "messaging.destination.partition.id"
CONSUMER_GROUP, CLIENT_ID = "messaging.consumer.group.name", "messaging.client.id"
MESSAGE_ID, BODY_SIZE = "messaging.message.id", "messaging.message.body.size"
BATCH_COUNT = "messaging.batch.message_count"
SERVER_ADDRESS, SERVER_PORT, ERROR_TYPE = "server.address", "server.port", "error.type"
CLIENT_ADDRESS, CLIENT_PORT = "client.address", "client.port"

NAMESPACE, CONSUMPTION_MODEL, MESSAGE_TYPE = "namespace", "consumption_model", "message.type"
MESSAGE_TAG, MESSAGE_KEYS = "message.tag", "message.keys"
DELAY_LEVEL = "message.delay_time_level"
_FORMER, _NEWEST = "messaging.rocketmq.", "rocketmq."

AttributeValue = str | int | Sequence[str]
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_VERSION_NEVER = "ff"
_SAMPLED = 0x01


class RocketNames:
    """Attributes of RocketMQ under the requested names."""

    def __init__(self, opt_in: str) -> None:
        """Create the names; `opt_in` is the value of OPT_IN."""
        chosen = {each.strip() for each in opt_in.split(",")}
        self._prefixes: tuple[str, ...] = (_FORMER,)
        if "messaging/dup" in chosen:
            self._prefixes = (_FORMER, _NEWEST)
        elif "messaging" in chosen:
            self._prefixes = (_NEWEST,)

    def of(self, values: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        """Return these values under their full names."""
        return {prefix + name: value for prefix in self._prefixes for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The span that created a message."""

    trace_id: int
    span_id: int
    is_sampled: bool


def parse_traceparent(text: str) -> TraceParent | None:
    """Parse a `traceparent`; return None if invalid.

    Later versions are read as far as they are known.
    """
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == _VERSION_NEVER or (version == "00" and more) or not trace_id or not span_id:
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))
