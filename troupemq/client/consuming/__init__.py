"""Consuming: PushConsumer, PullConsumer, Idempotent.

consumer.py           PushConsumer
pull_consumer.py      PullConsumer; group_member.py: what both have in common
listener.py           what a listener may say; consume.py, consume_orderly.py: its callers
idempotent.py         a listener for messages that may come twice
rebalance.py          which queues are ours; assignment.py, queue_locks.py
pull.py               fetches; process_queue.py: what waits
consumer_offsets.py   how far a group is, at the broker; local_offsets.py: in files
sending_back.py       messages given back to their broker
consumer_requests.py  what brokers ask of a consumer; running_info.py, consumer_statistics.py
subscription.py, consumer_settings.py
"""
