"""Typed command headers: dataclasses to and from extFields.

fields.py    the one place that converts text, by annotation
send.py      send (long and short names), reply
client.py    pull, query, view, offsets, members of groups, send back, requests to clients
transaction.py   end of a transaction, check of its state
pop.py       receives of the 5.x clients, their receipts
admin.py     topics, groups, statistics, access control
namesrv.py   broker registration, route, key-value config
own.py       TroupeMQ extensions: Spark jobs, sinks, leases, bulk reads
"""
