"""Several masters or slaves on one machine: broker processes under one supervisor process.

    stores.py      folders of their stores, and how many exist
    plan.py        settings of each, derived from one file; reasons to refuse a start
    monitoring.py  process with the metrics and health of all at one port
    supervisor.py  process that starts and stops all and restarts each that dies; it keeps a spare
                   process, in which the next restart happens

`troupemq broker` makes the plan and then becomes the supervisor (exec). The supervisor imports only
the standard library, so it needs 14 MB of memory instead of 50.
"""
