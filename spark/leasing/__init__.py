"""Leases, which keep the broker's cleaning from deleting files during a read.

    store_lease.py     of a store directory: a file that the kernel holds for this process
    broker_leases.py   of brokers, requested and renewed over the network
    keeper.py          the process that holds them for a read

Without a lease (an official broker, a copied store, a read-only directory) the job continues. One
line reports a refusal.
"""
