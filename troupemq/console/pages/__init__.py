"""The pages of the console: each a function from what was asked to parts, marked with its path.

overview.py  what is wrong now
brokers.py   brokers: actors, store, damage, settings
topics.py    topics, queues, who consumes them
groups.py    consumer groups, their members, how far they are behind
messages.py  messages: found, looked at, as they come; their traces
waiting.py   dead letters, transactions, delays
jobs.py      Spark jobs
access.py    access control of the brokers
house.py     users, alerts, audit: the console's own
"""
