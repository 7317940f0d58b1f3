"""The commit log: every message of every topic, one record behind the other.

commit_log.py   append, read, roll to the next file
append.py       messages as the bytes of a log
reader.py       the records of a range, one at an offset, the next one behind damage
damage.py       the ranges that are known to be damaged
"""
