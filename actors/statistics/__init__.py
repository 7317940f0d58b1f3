"""Counters of sends, pulls, topics, groups and transactions.

Their owners write them without locks; any thread may read. Statistics samples them and answers
administrators. No messages are sent.
"""
