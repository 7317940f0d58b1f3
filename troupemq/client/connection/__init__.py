"""The shared base of producers, consumers and Admin.

client.py        client id, heartbeats, requests of brokers
lifecycle.py     start, stop and `with`
calls.py         flows: logic that asks servers, for threads and for event loops
route.py         routes of topics
remoting.py      calls to any address, on one I/O thread; connection.py: one connection
tls_connection.py   one with TLS, loaded only then
task_thread.py   one thread for timed tasks, or a pool of threads
"""
