"""Optional OpenTelemetry spans: nothing is imported unless opentelemetry-api is installed."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troupemq.client.span_making import ClientSpans

AddressOf = Callable[[str], str | None]


def spans_of(client_id: str, address_of: AddressOf = lambda _: None) -> "ClientSpans | None":
    """Return the span factory of one client; None unless opentelemetry-api is installed.

    `address_of` returns the host:port of a broker by its name, or None if it is unknown.
    """
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.trace") is None:
        return None
    from troupemq.client.span_making import ClientSpans

    return ClientSpans(client_id, address_of)
