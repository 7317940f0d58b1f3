"""Metrics of TLS and connections: handshakes, certificates, open connections."""

from collections.abc import Sequence

from actors.metrics.page import MetricsPage, labels
from actors.metrics.selection import flag
from actors.network.messages import ConnectionFigures
from actors.network.tls_contexts import TlsContexts
from actors.network.tls_negotiator import HANDSHAKE_RESULTS

PORTS = ("main", "fast")


def write_tls(page: MetricsPage, contexts: TlsContexts | None) -> None:
    """Write the families; they are empty without TLS."""
    page.counter(
        "troupemq_tls_handshakes_total",
        "TLS handshakes by result",
        []
        if contexts is None
        else [
            (labels({"result": result}), contexts.handshakes[result])
            for result in HANDSHAKE_RESULTS
        ],
    )
    ends = {} if contexts is None else contexts.not_after_s
    page.gauge(
        "troupemq_tls_certificate_not_after_seconds",
        "Earliest expiry of a certificate in the chain, Unix seconds",
        [(labels({"use": use}), end_s) for use, end_s in ends.items()],
    )


def write_connections(
    page: MetricsPage,
    connections: ConnectionFigures,
    meaning: str,
    ports: Sequence[str] = PORTS,
) -> None:
    """Write the number of open connections by port and TLS."""
    page.gauge(
        "troupemq_connections",
        meaning,
        [
            (
                labels({"port": port, "tls": flag(has_tls)}),
                connections.open.get((port == "fast", has_tls), 0),
            )
            for port in ports
            for has_tls in (False, True)
        ],
    )
