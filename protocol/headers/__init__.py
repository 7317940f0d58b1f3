"""Typed command headers: dataclasses to and from extFields, one file per subject.

fields.py        the one place that converts text, by annotation
send.py          send (long and short names), reply
pull.py          pull, query, view
offset.py        queue offsets, consumer offsets
client.py        unregister, consumer list, send back, requests to clients
transaction.py   end transaction, check state
admin.py         topics, groups, statistics, access control
jobs.py          Spark jobs (TroupeMQ extension)
sink.py          sinks of Spark queries (TroupeMQ extension)
namesrv.py       broker registration, route, key-value config
"""
