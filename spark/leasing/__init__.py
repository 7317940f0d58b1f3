"""Leases: while somebody reads, the broker's cleaning keeps the files that are needed.

    store_lease.py     of a store directory: a file that the kernel holds for this process
    broker_leases.py   over the network: asked of each broker, and renewed
    keeper.py          the process that holds them for a read

Where there can be none (an official broker, a copied store, a directory that may not be written)
the job goes on without; one line says so if somebody refused it.
"""
