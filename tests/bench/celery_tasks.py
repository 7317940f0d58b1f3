"""Celery application of the trials and loads: `celery -A tests.bench.celery_tasks worker`.

BROKER_URL names the broker; CONFIRM_PUBLISH=False leaves publications unconfirmed. Each task
appends a line to the file TASKS_RAN, with one system call.
"""

import os
from threading import Event
from time import time

from celery import Celery

from troupemq import kombu as transport

app = Celery("trial", broker=os.environ.get("BROKER_URL"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_send_task_events=False,
    broker_transport_options={"confirm_publish": os.environ.get("CONFIRM_PUBLISH") != "False"},
    task_default_queue=os.environ.get("TASKS_QUEUE", "celery"),
)
SCHEMES = transport.SCHEME, transport.TLS_SCHEME


def note(line: str) -> None:
    ran = os.open(os.environ["TASKS_RAN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(ran, line.encode() + b"\n")
    finally:
        os.close(ran)


@app.task  # type: ignore[untyped-decorator]
def run(number: int, sent_s: float) -> None:
    note(f"{number} {sent_s} {time()}")


@app.task(acks_late=True, reject_on_worker_lost=True)  # type: ignore[untyped-decorator]
def work(number: int, seconds: float) -> None:
    note(f"begin {number}")
    Event().wait(seconds)
    note(f"end {number}")
