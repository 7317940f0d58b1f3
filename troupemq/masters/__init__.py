"""Several masters on one machine, or several slaves: brokers of their own under one process.

    stores.py      where their stores lie, and how many there are
    plan.py        their settings, derived from one file's; what refuses them
    monitoring.py  the process beside them that shows metrics and health of all at one port
    supervisor.py  the process that starts them, starts each again that dies, and stops all; beside
                   them it keeps a spare, which becomes the next one that is started again

`troupemq broker` makes the plan and then becomes the supervisor (exec), which imports nothing of
ours: 14 MB in place of 50.
"""
