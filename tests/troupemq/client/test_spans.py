"""Tests of troupemq/client/spans.py: a client without OpenTelemetry makes no spans."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import reload

import pytest

from tests.troupemq.client.cluster import MESSAGE, Cluster
from troupemq.client import spans


@pytest.fixture
def spans_read_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read the module again after the test, when all packages are there again."""
    yield
    monkeypatch.undo()
    reload(spans)


@pytest.mark.usefixtures("spans_read_again")
@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.trace"])
def test_without_the_library_there_are_no_spans(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, missing: str
) -> None:
    assert spans.spans_of("me") is not None
    monkeypatch.setitem(sys.modules, missing, None)
    reload(spans)
    assert spans.spans_of("me") is None
    with cluster.producer() as producer:
        assert producer._spans is None
        producer.send(MESSAGE)


@pytest.mark.slow  # starts a process
def test_clients_of_asyncio_import_the_library_before_their_loop_runs() -> None:
    code = (
        "import sys\nfrom troupemq.aio import Producer\nprint('opentelemetry.trace' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"
