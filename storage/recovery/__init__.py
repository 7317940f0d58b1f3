"""Start-up of a store: the end of the log, its damage, and the rebuild of derived files.

recovery.py        all steps of a start-up, and their report
log_scan.py        read of the log that trusts nothing
log_chunks.py      fast reads of log stretches; part_worker.py: by other processes, ahead
checkpoint.py      store times up to which each part is synced
clean_stop.py      record of a clean stop; start_findings.py: differences from it
queue_numbers.py   units of records that do not continue their queue
store_format.py    format version of a store, mark of a copy in progress
store_rebuild.py   rebuild of all derived files
"""
