"""Tests of troupemq/client/spans.py: a client without OpenTelemetry makes no spans."""

import sys

import pytest

from tests.troupemq.client.cluster import MESSAGE, Cluster
from troupemq.client import spans


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.trace"])
def test_without_the_library_there_are_no_spans(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, missing: str
) -> None:
    assert spans.spans_of("me") is not None
    monkeypatch.setitem(sys.modules, missing, None)
    assert spans.spans_of("me") is None
    with cluster.producer() as producer:
        assert producer._spans is None
        producer.send(MESSAGE)
