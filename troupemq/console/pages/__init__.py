"""Pages of the console: each a function from a request to parts, registered with its path.

overview.py  current problems, throughput and lag
brokers.py   brokers: actors, store, damage, settings with meanings
topics.py    topics, their queues, groups and producers
group.py     consumer groups: all, and one with members, queues, rebalances
clients.py   one member: verdict, worker stacks, running info
messages.py  search for messages, the newest of a topic, and new ones as they come
message.py   one message, and traces
waiting.py   dead letters, open transactions, delayed messages
jobs.py      Spark jobs
access.py    access control of the brokers
house.py     users, alerts and audit log of the console
"""
