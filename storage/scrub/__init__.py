"""Checks a store against itself while others use it: `round` goes through all of it once.

round.py         the log from its newest file to its oldest, each record with its unit
units.py         single units: which record each means
unit_reader.py   units, read through descriptors of its own; records: storage/log/reader.py
"""
