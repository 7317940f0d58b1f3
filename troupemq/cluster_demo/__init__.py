"""`make cluster-demo`: a Spark job over a live broker's log, on a cluster that loses a worker.

On this machine, from the installed packages alone: a name server and a broker with messages; a
Spark master and two workers; `troupemq job run traffic` on them. When both workers have done some
of its tasks, one is killed with its executor (SIGKILL), while the broker takes further messages.
The job's report must be what was sent, to the byte. Nothing is left behind; the exit code says
whether all of it was so.

    python -m troupemq.cluster_demo [--messages N] [--worker-python PATH]

    __main__.py     the process: name server, broker, signals, exit code
    story.py        the steps
    figures.py      what they come to, and whether that is right
    standalone.py   a master and workers out of the pip package
"""
