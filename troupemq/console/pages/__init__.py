"""Pages of the console: each a function from a request to parts, registered with its path.

overview.py  current problems, throughput and lag
brokers.py   brokers: actors, store, damage, settings
topics.py    topics, their queues, groups and producers
groups.py    consumer groups; group.py: one, with members, queues, rebalances
clients.py   one member: verdict, worker stacks, running info
messages.py  search for messages, and the newest of a topic
live.py      messages of a topic as they come
message.py   one message, and traces
waiting.py   dead letters, open transactions, delayed messages
jobs.py      Spark jobs
access.py    access control of the brokers
house.py     users, alerts and audit log of the console
"""
