"""Store of a slave: a byte-for-byte copy of its master's log.

replica_log.py         received bytes, published record by record
queue_generations.py   queues that begin again as they did at the master
replica_mark.py        mark of a slave's store
"""
