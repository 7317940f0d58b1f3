"""Consume queues: 20 bytes per message that point at its record in the commit log.

consume_queues.py      all queues of a store
consume_queue.py       one queue; extended_queue.py: one queue with an extension
consume_queue_ext.py   file of an extension
stored_units.py        units in memory and in files; queue_units.py: their 20 bytes
queue_files.py         cache of open files, list of queues; queue_run.py: files that form a queue
unsynced.py            unsynced files and directories
dispatch_entry.py      fields of a record that derived files need
message_filter.py      filters of readers
"""
