"""Tests of the tasks: a worker and a broker in this process."""

from collections.abc import Iterator

import pytest
from celery.contrib.testing.worker import start_worker
from tasks import app, charge, ship

from troupemq.testing import LocalBroker


@pytest.fixture(autouse=True, scope="session")
def worker(troupemq_session_broker: LocalBroker) -> Iterator[None]:
    """Run one worker for all tests: Celery keeps its connections to a broker."""
    app.conf.update(broker_url=f"troupemq://{troupemq_session_broker.namesrv}//")
    with start_worker(app, perform_ping_check=False):
        yield
    app.close()


def test_task_runs_and_its_result_comes_back() -> None:
    assert ship.delay("order-1").get(timeout=20) == "order-1 is on its way"


def test_task_that_fails_once_is_tried_again() -> None:
    assert charge.delay("order-2", 4200).get(timeout=20) == "order-2 is paid"


def test_error_of_a_task_reaches_its_caller() -> None:
    with pytest.raises(ValueError, match="order-3 costs -1"):
        charge.delay("order-3", -1).get(timeout=20)
