"""Start-up: where the log ends, what of it is damaged, what has to be made anew.

recovery.py        the way through all of it
log_scan.py        the log, read without trust; from where
log_parts.py       stretches of it, read fast; part_worker.py: by other processes, ahead
key_parts.py       the same for the index, when it is far behind
recovery_report.py what was found and done
checkpoint.py      up to which store time each part is on disk
clean_stop.py      how a clean stop has left it all; start_findings.py: what differs
queue_numbers.py   places for records whose number does not continue their queue
store_rebuild.py   all that is derived, made anew
"""
