"""The client: sends to and consumes from TroupeMQ and RocketMQ 4.9 brokers.

message.py     Message, MessageView, SendResult, MessageQueue
errors.py      what may have to be caught
producing/     Producer, TransactionProducer, requests
consuming/     PushConsumer, PullConsumer, Idempotent
connection/    connections, routes, heartbeats; below both
admin/         Admin: all that administrators ask and change, with typed results
"""
