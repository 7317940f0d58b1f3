"""Sending: Producer and TransactionProducer.

producer.py        Producer
sending.py         one send under way; in_flight.py: how many at once
batches.py         several messages in one request
queue_choice.py    which queue a message goes to
request_reply.py   requests, and the reply to one
transaction.py     TransactionProducer
trace.py           message traces
"""
