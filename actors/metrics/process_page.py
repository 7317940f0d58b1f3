"""The figures of the process and of its garbage collector, as the library writes them.

Without the extra `metrics` there are none, and no metrics at all: `missing_library` says so.
"""

from importlib.util import find_spec

LIBRARY = "prometheus_client"
MISSING = (
    "metrics are asked for (metricsExporterType=PROM), and the library for them is not installed:"
    " pip install 'troupemq[metrics]'"
)


def missing_library() -> str | None:
    """One sentence that says what to install; None where it is there."""
    return None if find_spec(LIBRARY) is not None else MISSING


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
