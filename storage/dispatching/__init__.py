"""Dispatch of records: from the commit log to queues, index and transaction table.

dispatch.py    a record → its queue unit and what the followers want to know
sink_table.py  how far the sinks of Spark queries are: one of the followers
followers.py   index and transaction table, brought to the log's end
"""
