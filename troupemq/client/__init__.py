"""The client: sends to and consumes from TroupeMQ and RocketMQ 4.9 brokers.

message.py           Message, MessageView, SendResult, MessageQueue
producer.py          Producer        sending.py, batches.py, queue_choice.py, in_flight.py, trace.py
transaction.py       TransactionProducer
request_reply.py     requests, and the reply to one
consumer.py          PushConsumer    rebalance.py, assignment.py, pull.py, process_queue.py,
                                     consume.py, consumer_offsets.py
admin.py             Admin: topics and offsets
lifecycle.py         start, stop and `with` of producers and consumers
client.py            what they have in common: heartbeats, client id   route.py: where topics are
remoting.py          calls to any address, one I/O thread   connection.py   task_thread.py
errors.py            what may have to be caught
"""
