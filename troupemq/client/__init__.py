"""Client for TroupeMQ and RocketMQ 4.9 brokers.

message.py     Message, MessageView, SendResult, MessageQueue
errors.py      errors that an application may catch
settings.py    settings of producers and consumers
producing/     Producer, TransactionProducer, requests
consuming/     PushConsumer, PullConsumer, Idempotent
receiving/     SimpleConsumer
connection/    connections, routes and heartbeats, shared by all of these
admin/         Admin: administration of a cluster, with typed results
"""
