"""The sink of the data source `troupemq`: rows become messages of a topic, each stored once.

file             what it does                                              needs Spark
options.py       the options, refused by name                              no
rows.py          columns refused by name; record batches → messages        no
queues.py        which queue a message goes into                           no
brokers.py       which broker takes what a task sends; patience with it    no
lanes.py         what a task sends to one topic: numbered, checked, sent   no
plain_send.py    the same to a broker that has no requests of ours         no
task.py          all messages of a task                                    no
writer.py        the PySpark writers over all of this                      yes

How a repeat is recognised: protocol/sink.py; what the broker does: actors/sending/sink.py.
"""
