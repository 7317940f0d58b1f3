"""Copies of a store in use, and stores restored from them.

    record    content of a copy, and the state of its last run
    copying   copies one file, whole or its growth, at the caller's pace
    backup    one run: what is copied, in which order, up to which log offset
    restore   a store from a copy

A backup owns neither the store nor its lock. The broker keeps running and learns of the backup by a
lease (storage/retention/leases.py). Only the command line uses this room
(troupemq/store_backup.py).
"""
