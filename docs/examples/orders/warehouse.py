"""A warehouse that packs paid orders, each settled by itself."""

import json
import sys

from troupemq import ConsumeFrom, Message, Producer, SimpleConsumer

PAID, PACKED = "Paid", "Packed"


class Warehouse:
    """Packs orders while the stock lasts."""

    def __init__(self, consumer: SimpleConsumer, producer: Producer, stock: dict[str, int]) -> None:
        self._consumer, self._producer, self.stock = consumer, producer, stock

    def work(self, wait_ms: float = 15_000) -> int:
        """Pack what is paid, and return how many orders that were.

        An article that is missing has its order delivered again in a minute.
        """
        packed = 0
        for delivery in self._consumer.receive(32, wait_ms):
            order = json.loads(delivery.message.body)
            if self.stock.get(order["article"], 0) <= 0:
                delivery.retry(delay_level=5)
                continue
            with delivery:  # acknowledges; an exception has the message delivered again
                self.stock[order["article"]] -= 1
                body = json.dumps(order).encode()
                self._producer.send(Message(PACKED, body, keys=order["number"]))
                packed += 1
        return packed


def main(namesrv: str) -> None:
    with (
        Producer("warehouse", namesrv) as producer,
        SimpleConsumer("warehouse", namesrv, begin=ConsumeFrom.FIRST_OFFSET) as consumer,
    ):
        consumer.subscribe(PAID)
        warehouse = Warehouse(consumer, producer, {"book": 100})
        while True:
            warehouse.work()


if __name__ == "__main__":
    main(sys.argv[1])
