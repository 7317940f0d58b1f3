"""A worker process: says what it has begun and what is acknowledged, and never ends a long task.

python -m tests.troupemq.client.receiving.worker NAMESRV
"""

import sys

from troupemq import ConsumeFrom, SimpleConsumer

LONG = b"long"


def work(namesrv: str) -> None:
    with SimpleConsumer("workers", namesrv, begin=ConsumeFrom.FIRST_OFFSET) as consumer:
        consumer.subscribe("Tasks")
        while True:
            for delivery in consumer.receive():
                body = delivery.message.body
                if body == LONG:
                    print("begun", flush=True)
                    continue
                delivery.ack()
                print(body.decode(), flush=True)


if __name__ == "__main__":
    work(sys.argv[1])
