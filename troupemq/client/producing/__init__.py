"""Producer and TransactionProducer.

producer.py        Producer, and the limits of its in-flight sends
lanes.py           sends that wait for a route or for compression
sending.py         one in-flight send and its retries
batches.py         several messages in one request
queue_choice.py    choice of a message's queue; priorities.py: by its priority
request_reply.py   request-reply
transaction.py     TransactionProducer
recalling.py       cancellation of delayed deliveries
trace.py           message traces
"""
