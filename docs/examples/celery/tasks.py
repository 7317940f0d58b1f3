"""Tasks of a shop, for `celery -A tasks worker`."""

import os

from celery import Celery

app = Celery(
    "shop",
    broker=os.environ.get("BROKER_URL", "troupemq://127.0.0.1:9876//"),
    backend="rpc://",
)
app.conf.update(broker_transport="troupemq.kombu:Transport")


@app.task(acks_late=True)
def ship(order: str) -> str:
    return f"{order} is on its way"


@app.task(bind=True, max_retries=3, default_retry_delay=1)
def charge(self, order: str, cents: int) -> str:  # type: ignore[no-untyped-def]
    if cents < 0:
        raise ValueError(f"{order} costs {cents}")
    if self.request.retries == 0:
        raise self.retry(exc=ConnectionError("the bank does not answer"))
    ship.delay(order)
    return f"{order} is paid"
