"""Entry point for OpenTelemetry's instrumentation: the spans of all clients, on and off.

    TroupeMQInstrumentor().instrument(tracer_provider=provider)

`opentelemetry-instrument` finds it by itself. Clients make spans without it, too, once the
application has set a span provider (troupemq/client/spans.py). Needs opentelemetry-instrumentation.
"""

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from troupemq.client.span_making import SWITCH


class TroupeMQInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Switch of the spans of all clients in this process, those that run included."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no requirements: the instrumentor is a part of what it instruments."""
        return ()

    def _instrument(self, **options: Any) -> None:
        """Make spans with the option `tracer_provider`, else the application's provider."""
        SWITCH.is_on, SWITCH.provider = True, options.get("tracer_provider")

    def _uninstrument(self, **options: Any) -> None:
        """Make no more spans, and pass no context of a trace on."""
        SWITCH.is_on, SWITCH.provider = False, None
