"""Optional OpenTelemetry spans: nothing is imported unless opentelemetry-api is installed."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troupemq.client.span_making import ClientSpans

AddressOf = Callable[[str], str | None]

_API = ("opentelemetry", "opentelemetry.trace")


def spans_class() -> "type[ClientSpans] | None":
    """Import and return the class of span factories; None unless opentelemetry-api is installed."""
    try:
        import opentelemetry.trace  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name in _API:
            return None
        raise
    from troupemq.client.span_making import ClientSpans

    return ClientSpans


def spans_of(client_id: str, address_of: AddressOf = lambda _: None) -> "ClientSpans | None":
    """Return the span factory of one client; None unless opentelemetry-api is installed.

    `address_of` returns the host:port of a broker by its name, or None if it is unknown.
    """
    found = spans_class()
    return None if found is None else found(client_id, address_of)
