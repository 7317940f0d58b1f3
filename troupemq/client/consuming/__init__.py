"""PushConsumer, PullConsumer and Idempotent.

consumer.py           PushConsumer and its threads; push_work.py: its parts that event loops share
pull_consumer.py      PullConsumer
group_member.py       the base of both; group_work.py: its parts that event loops share
listener.py           listeners and their results
consume.py            flows of listener calls, retries, dead letters
idempotent.py         a listener that skips duplicates
rebalance.py          assignment of queues; assignment.py: rules
queue_locks.py        orderly consumption: broker locks, flows of listener calls
pull.py               pulls; process_queue.py: messages pulled and not yet consumed
consumer_offsets.py   consumer offsets at the broker; local_offsets.py: in files
consumer_requests.py  requests of brokers; running_info.py, consumer_statistics.py: their answers
subscription.py       tag and SQL92 subscriptions
"""
