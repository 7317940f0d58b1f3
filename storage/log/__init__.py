"""Commit log: the records of all topics, in arrival order.

append.py       encoding of messages as records
commit_log.py   append, read and roll to the next file
damage.py       known damaged ranges
reader.py       sequential and single-record reading, and the search behind damage
"""
