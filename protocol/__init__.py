"""Bytes to values and back: the wire and the records of RocketMQ 4.9.7, without any I/O.

errors.py          errors by the side at fault
codes.py           every number and bit with a name
frame.py           commands and their frames      stream.py          a peer's bytes in, events out
headers/           typed command headers (extFields)
bodies.py          typed JSON bodies              bodies_admin.py    those for administrators
bodies_tables.py   those with a broker's tables
bodies_assignment.py   those of assignments       allocation.py      rules that divide queues
json_body.py       how a dataclass becomes one    fastjson.py        the dialect they are in
fastjson_reader.py     texts that are no standard JSON; fastjson_limits.py: their limits
message.py         the record of the commit log   properties.py      its property text
message_id.py      ids of messages                host.py            addresses in records
batch.py           many messages in one body      compression.py     compressed bodies
tags.py            tag expressions, hashes        timers.py          timers; delay_levels.py
sql92/             property filters               bloom.py           bits of their outcomes
send_wire.py       sends, answers at full speed   send_values.py     the fields of sends
receipts.py        handles of messages that are settled one by one
properties_file.py Java's properties format       sink.py            batches that may be repeated
"""
