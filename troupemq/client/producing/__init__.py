"""Producer and TransactionProducer.

producer.py        Producer, and the limits of its in-flight sends
making.py          messages checked and encoded
batches.py         several messages in one request
sending.py         in-flight sends: retries, and lanes for a route or for compression
queue_choice.py    choice of a message's queue; priorities.py: by its priority
request_reply.py   request-reply
transaction.py     TransactionProducer
recalling.py       cancellation of delayed deliveries
trace.py           message traces
"""
