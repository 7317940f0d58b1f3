"""The base of every client: connections, routes, heartbeats, threads, start and stop.

client.py        heartbeats, client id, what producers and consumers share
lifecycle.py     start, stop and `with`
route.py         where topics are
remoting.py      calls to any address, one I/O thread; connection.py: one of them
task_thread.py   one thread of timed tasks; workers.py: some of plain ones
"""
