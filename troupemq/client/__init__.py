"""The client: sends to and consumes from TroupeMQ and RocketMQ 4.9 brokers.

message.py           Message, MessageView, SendResult, MessageQueue
producer.py          Producer        sending.py, batches.py, queue_choice.py, in_flight.py, trace.py
transaction.py       TransactionProducer
request_reply.py     requests, and the reply to one
consumer.py          PushConsumer    listener.py, consume.py, consume_orderly.py, sending_back.py
pull_consumer.py     PullConsumer    both: group_member.py, consumer_settings.py, subscription.py
idempotent.py        Idempotent, MemorySeen, SqliteSeen
rebalance.py         which queues are ours   assignment.py, queue_locks.py
pull.py              fetches   process_queue.py: what waits
consumer_offsets.py  how far a group is, at the broker   local_offsets.py: in files
consumer_requests.py what brokers ask of a consumer   running_info.py, consumer_statistics.py
admin.py             Admin: topics and offsets
lifecycle.py         start, stop and `with` of producers and consumers
client.py            what they have in common: heartbeats, client id   route.py: where topics are
remoting.py          calls to any address, one I/O thread   connection.py
task_thread.py       one thread of timed tasks   workers.py: some of plain ones
errors.py            what may have to be caught
"""
