"""Spans of OpenTelemetry, where an application has it; without it nothing of it is imported."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troupemq.client.span_making import ClientSpans

AddressOf = Callable[[str], str | None]


def spans_of(client_id: str, address_of: AddressOf = lambda _: None) -> "ClientSpans | None":
    """What makes the spans of one client; None where opentelemetry-api is not installed.

    `address_of` a broker's name gives its host:port, if that is known.
    """
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.trace") is None:
        return None
    from troupemq.client.span_making import ClientSpans

    return ClientSpans(client_id, address_of)
