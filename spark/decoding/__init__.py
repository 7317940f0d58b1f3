"""The commit log's bytes as Arrow record batches, in bulk; without Spark.

store_files.py   a store's files as a reader sees them, without a lock
records.py       consume queue units, each checked against its record
log_walk.py      the records of one log file, without the queues
columns.py       the columns of a message, and what old archives called them
decode.py        checked records → Arrow record batches, compressed bodies plain
properties.py    keys, tags and unique keys out of property texts, in bulk
"""
