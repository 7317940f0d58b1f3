"""The sink of the data source `troupemq`: rows become messages of a topic, each stored once.

file             contents                                                  needs Spark
options.py       options, parsed and checked                               no
rows.py          columns, checked; record batches → messages               no
brokers.py       brokers that get a task's messages, with retries          no
lanes.py         messages of a task for one topic: numbered, compared      no
plain_send.py    choice of queues, sends to brokers without extensions     no
writer.py        the PySpark writers, all messages of a task               yes

protocol/sink.py describes how a repeat is recognised, actors/sending/sink.py the broker's part.
"""
