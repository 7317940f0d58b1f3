"""Check of a whole store for consistency, while no broker has it open (`troupemq store check`).

store_check.py    the whole check, and that of the JSON tables by the loaders of a start
store_layout.py   the list of the files
index_check.py    one index file against the log
"""
