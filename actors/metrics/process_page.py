"""Metrics of the process and its garbage collector, written by prometheus_client.

If metrics are enabled without the extra `metrics`, the server refuses to start.
"""


class ProcessPage:
    """Families of the library, which must be installed; owned by one thread."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def text(self) -> str:
        """Return the families process_* and python_gc_*."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()
