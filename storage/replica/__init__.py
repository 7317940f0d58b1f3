"""The store of a slave: its master's log, byte for byte.

replica_log.py         the bytes as they come, published record by record
replica_scan.py        the records of a stretch of it
queue_generations.py   queues that begin anew where the master's did
replica_mark.py        whether a store was a slave's
"""
