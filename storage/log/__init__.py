"""Commit log: the records of all topics, in arrival order.

commit_log.py   encode, append, read and roll to the next file
damage.py       known damaged ranges
reader.py       sequential and single-record reading, and the search behind damage
"""
