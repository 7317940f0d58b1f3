"""SimpleConsumer: messages that are received and settled one by one, in RocketMQ 5's way (POP).

simple_consumer.py  SimpleConsumer; receive_work.py: its parts that event loops share
delivery.py         Delivery, a received message; gathering of acknowledgements
waiter.py           drivers of the flows, here the one that blocks
reclaiming.py       what happens to held messages when their connection ends
flows.py            the logic: generators that yield requests and receive their answers
receipt.py          handles of received messages, read from an answer, written into requests

The flows have no socket, lock, thread or clock of their own, so that another driver, such as one of
coroutines, can run them.
"""
