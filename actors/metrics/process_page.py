"""The figures of the process and of its garbage collector, as the library writes them.

A start without the extra `metrics` is refused where a setting asks for metrics.
"""


class ProcessPage:
    """Needs the library. Owned by one thread."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def text(self) -> str:
        """The families process_* and python_gc_*."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()
