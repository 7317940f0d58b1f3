"""Check of a whole store for consistency, while no broker has it open (`troupemq store check`).

store_check.py    the whole check
store_layout.py   the list of the files
index_check.py    one index file against the log
table_check.py    the JSON tables, by the loaders of a start
"""
