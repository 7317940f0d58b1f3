"""Copies of a store that is written to, and stores made from them.

    record    what is in a copy, how far each file reaches, and whether the last run has ended
    copying   one file, at the pace of the caller: whole, or what was added to it
    backup    a run: what is copied, in which order, and where the log of the copy ends
    restore   a store from a copy

Who copies has neither the store nor its lock: the broker goes on, and is told of it by a lease
(storage/retention/leases.py). Used by the command line alone (troupemq/store_backup.py).
"""
