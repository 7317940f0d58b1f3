"""Demonstration of a Spark job over a live broker, on a cluster that loses a worker.

`make cluster-demo` starts all processes on this machine from the installed packages: a name server
and a broker with messages, a Spark master and two workers, and `troupemq job run traffic`. After
both workers have completed tasks, the demonstration kills one with its executor (SIGKILL), while
the broker accepts further messages. The job's report must equal the sent data to the byte. No
process or file remains after a success; the exit code gives the result.

    python -m troupemq.cluster_demo [--messages N] [--worker-python PATH]

    __main__.py     the process: name server, broker, signals, exit code
    story.py        the steps
    figures.py      the measured values and their check
    standalone.py   a Spark master and workers from the pip package
"""
