"""The index: from the hash of a key to the records that have it.

index.py         the run of index files
key_columns.py   keys on their way into them
index_file.py    one of them; index_layout.py: its layout
key_hash.py      the hash of `topic#key`, as Java has it
"""
