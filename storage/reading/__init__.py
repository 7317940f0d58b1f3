"""Reads of queues: messages for a pull, bulk reads and offsets by time.

get_message.py   status, corrected offset and records of a pull; its fast path
checked_get.py   unverified units and filters
raw_get.py       units and log pieces in bulk, for readers of whole queues
get_result.py    limits and result of a get
unit_check.py    check of a unit against its record
record_place.py  check of a record position named by a client
page_probe.py    search for bytes that are not in the page cache
queue_times.py   offsets by time
delayed.py       due messages of one delay level
"""
