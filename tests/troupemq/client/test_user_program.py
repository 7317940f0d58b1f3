"""A program of an application, typed as one would write it: `make types` checks it strictly."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import assert_type

import pytest

from troupemq import (
    Admin,
    ConsumeFrom,
    Delivery,
    DeliverySettled,
    Message,
    MessageView,
    Producer,
    SendResult,
    SimpleConsumer,
)
from troupemq.testing import LocalBroker

ROOT = Path(__file__).parents[3]
WITHOUT_STOP = """
import sys
from troupemq import Message, Producer
producer = Producer("shop", sys.argv[1])
producer.start()
for number in range(3000):
    producer.send_async(Message("Tasks", b"%d" % number))
"""


def program(namesrv: str) -> list[str]:
    done: list[str] = []
    with Admin(namesrv) as admin:
        admin.create_topic("Tasks", 2)
    with Producer("shop", namesrv) as producer:
        result = producer.send(Message("Tasks", b"one", keys=["k1"], delay=timedelta(0)))
        assert_type(result, SendResult)
        assert_type(result.recall_handle, str | None)
        producer.send_async(Message("Tasks", b"two", deliver_at=0)).result()
    with SimpleConsumer(
        "workers", namesrv, hold="connection", begin=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        consumer.subscribe("Tasks")
        while len(done) < 2:
            deliveries = consumer.receive(count_max=1, wait_ms=5000)
            assert_type(deliveries, list[Delivery])
            for delivery in deliveries:
                with delivery as same:
                    assert_type(same.message, MessageView)
                    done.append(same.message.body.decode())
                try:
                    delivery.retry(seconds=1.5)
                except DeliverySettled as error:
                    assert_type(error, DeliverySettled)
        consumer.ack(consumer.receive(wait_ms=0))
    return done


@pytest.mark.heavy
def test_the_program_runs_as_it_is_typed(namesrv: str) -> None:
    assert sorted(program(namesrv)) == ["one", "two"]


@pytest.mark.slow
def test_a_program_that_forgot_the_stop_lost_its_last_sends_without_a_word(
    local_broker: LocalBroker,
) -> None:
    """Some 90 of 3,000 were not stored."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_STOP, local_broker.namesrv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(local_broker.messages("Tasks")) == 3000
