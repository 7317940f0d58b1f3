"""Optional OpenTelemetry spans: nothing is imported unless opentelemetry-api is installed.

They are imported with the client, since an event loop would wait for an import at its first use.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from troupemq.client.span_making import ClientSpans

AddressOf = Callable[[str], str | None]

_spans_class: "type[ClientSpans] | None" = None
try:
    import opentelemetry.trace  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("opentelemetry", "opentelemetry.trace"):
        raise
else:
    from troupemq.client import span_making

    _spans_class = span_making.ClientSpans


def spans_of(client_id: str, address_of: AddressOf = lambda _: None) -> "ClientSpans | None":
    """Return the span factory of one client; None unless opentelemetry-api is installed.

    `address_of` returns the host:port of a broker by its name, or None if it is unknown.
    """
    return _spans_class(client_id, address_of) if _spans_class is not None else None
