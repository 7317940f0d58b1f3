"""Consistency check of a store in use: one round goes through all of it.

round.py         the log from its newest file to its oldest, each record with its unit
units.py         single units and their records
unit_reader.py   units through own descriptors; for records see storage/log/reader.py
"""
