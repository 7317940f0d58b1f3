"""A worker of Celery, and children of a fork that publish."""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import Any

import pytest

pytest.importorskip("celery", reason="Celery is not installed")

from celery import Celery
from kombu import Exchange, Queue, pools

from tests.manual.following import ROOT
from troupemq import kombu as transport
from troupemq.testing import LocalBroker

SCHEMES = transport.SCHEME, transport.TLS_SCHEME
"""URLs that the import makes known."""
Connect = Callable[..., Any]


def worker_says(worker: Popen[str], wanted: str) -> str:
    """Return the output of a worker up to a line that contains `wanted`."""
    said = ""
    assert worker.stdout is not None
    for line in worker.stdout:
        said += line
        if wanted in line:
            return said
    raise AssertionError(said)


@pytest.mark.slow(seconds=5)
def test_worker_of_the_page_runs_its_task(broker: LocalBroker, tmp_path: Path) -> None:
    page = (ROOT / "docs/celery.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    place = f"troupemq://{broker.namesrv}//"
    assert "troupemq://127.0.0.1:9876//" in program
    (tmp_path / "shop.py").write_text(program.replace("troupemq://127.0.0.1:9876//", place))
    command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-c", "1", "-l", "INFO"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    app = Celery("shop", broker=place)
    with Popen(
        command, cwd=tmp_path, env=environment, stdout=PIPE, stderr=STDOUT, text=True
    ) as worker:
        try:
            worker_says(worker, "ready.")
            app.send_task("shop.ship", ("order-1",))
            worker_says(worker, "order-1")  # Celery logs each word that is printed
            (answer,) = app.control.inspect(timeout=10, limit=1).ping().values()
            assert answer == {"ok": "pong"}
        finally:
            worker.terminate()
            rest, _ = worker.communicate(timeout=20)
    assert worker.returncode == 0, rest
    broker.join("k-celery")
    app.close()
    pools.reset()  # closes the connection that published


@pytest.mark.slow
def test_children_of_a_fork_publish_by_themselves(connect: Connect) -> None:
    connection = connect()
    queue = Queue("forked", Exchange("forked"), "forked")
    producer = connection.Producer()
    producer.publish("parent", exchange="forked", routing_key="forked", declare=[queue])
    children = []
    for number in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads, from 3.12 on
            child = os.fork()
        if not child:
            status = 1
            try:
                producer.publish(f"child {number}", exchange="forked", routing_key="forked")
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    producer.publish("parent again", exchange="forked", routing_key="forked")
    found = []
    while (message := connection.default_channel.basic_get("forked")) is not None:
        found.append(message)
        message.ack()
    wanted = ["child 0", "child 1", "child 2", "parent", "parent again"]
    assert sorted(each.payload for each in found) == wanted
