"""The making of the actor that sends spans."""

from actors.engine.supervisor import ChildSpec
from actors.parts import Parts
from actors.spans.span_export import SpanExport


def span_children(parts: Parts) -> list[ChildSpec]:
    """None where spans are not asked for, or cannot be had."""
    queue = parts.spans
    if queue is None:
        return []
    config = parts.config
    return [
        ChildSpec(
            "span_export", lambda _: SpanExport(queue, parts.store, config, config.broker_name)
        )
    ]
