"""Gets: messages of a queue for a pull, and offsets by time.

get_message.py   the status, the corrected offset, the records
plain_get.py     the usual case; checked_get.py: units that may be wrong, filters
raw_get.py       units and pieces of the log, in bulk, for who reads whole queues
get_result.py    what a get may take, and what it gives
unit_check.py    whether a unit stands for the record that it points at
record_place.py  whether a record at a place that a client names is what its queue has there
page_probe.py    whether what will be touched is in memory
queue_times.py   offsets by time
delayed.py       the delayed messages of one level that are due
"""
