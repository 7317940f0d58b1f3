"""The index: from the hash of a key to its records.

index.py         the run of index files
key_columns.py   keys on their way into the files
index_file.py    one index file; its layout is in index_layout.py
key_hash.py      the hash of `topic#key`, as in Java
"""
