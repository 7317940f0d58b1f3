"""Start-up of a store: the end of the log, its damage, and the rebuild of derived files.

recovery.py        all steps of a start-up
log_scan.py        read of the log that trusts nothing
log_chunks.py      fast reads of log stretches; part_worker.py: by other processes, ahead
key_parts.py       fast reads for an index that is far behind
recovery_report.py findings and actions of a start-up
checkpoint.py      store times up to which each part is synced
clean_stop.py      record of a clean stop; start_findings.py: differences from it
queue_numbers.py   units of records that do not continue their queue
store_format.py    format version of a store
store_rebuild.py   rebuild of all derived files
unfinished_copy.py mark of a copy in progress
"""
