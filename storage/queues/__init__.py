"""The consume queues: for each message of a queue, 20 bytes that say where its record lies.

consume_queues.py      all queues of a store
consume_queue.py       one queue
extended_queue.py      one with an extension; consume_queue_ext.py: the extension's own file
stored_units.py        its units, in memory and in files; queue_units.py: their 20 bytes
queue_files.py         few files open at a time; queue_run.py: which of them make one run
queue_list.py          which queues there are, noted for the next start
time_search.py         the message of one file that was stored nearest to a moment
unsynced.py            what is not on disk yet
dispatch_entry.py      what of a record the derived files want to know
message_filter.py      which messages a reader wants
"""
