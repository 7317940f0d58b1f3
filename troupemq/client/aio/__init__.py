"""The client for asyncio: the names, settings and errors of the threaded client, with `await`.

connection.py   one connection to a server, an asyncio protocol
remoting.py     calls to any address, on the running event loop
client.py       client id, routes, heartbeats and requests of brokers
lifecycle.py    start, stop and `async with`
producer.py     sends, batches, requests
transaction.py  transactions
admin.py        administration: the operations of client/admin/
push_consumer.py  messages passed to a coroutine; handler_tasks.py: the tasks that call it
pull_consumer.py  messages that the application polls for
group_member.py   the base of consumers that are members of a group
simple_consumer.py  messages settled one by one

The logic is that of the threaded client: flows (connection/calls.py) and steps with callbacks
(producing/sending.py). Applications import these classes from `troupemq.aio`.
"""
