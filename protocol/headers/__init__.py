"""Typed command headers: dataclasses to and from extFields, one file per conversation.

fields.py        the one place that converts text, by annotation
send.py          send (long and short names), reply
pull.py          pull, query, view
offset.py        queue offsets, consumer offsets
client.py        unregister, consumer list, send back, what a broker asks of a client
transaction.py   end transaction, check state
admin.py         topics, groups, statistics, access control
jobs.py          Spark jobs: ours alone
sink.py          sinks of Spark queries: ours alone
namesrv.py       broker registration, route, key-value config
"""
