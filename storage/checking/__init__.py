"""`troupemq store check`: a whole store compared with itself while no broker has it open.

store_check.py    all of it
store_layout.py   what lies in the directory
index_check.py    one index file against the log
table_check.py    the JSON tables, by the start's own loaders
"""
