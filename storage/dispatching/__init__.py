"""Dispatch of records: from the commit log to queues, index and transaction table.

dispatch.py    turns a record into its queue unit and an entry for the followers
sink_table.py  progress of the sinks of Spark queries, a follower
followers.py   brings the followers to the end of the commit log
"""
