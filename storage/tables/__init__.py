"""The JSON tables below config/, each with its predecessor and its checksums.

json_config.py        reads and writes one such file and its .bak
crc_sidecar.py        the checksums of a file
skipped_entry.py      unusable entries of a table that is usable otherwise
topics.py, groups.py, offsets.py, delay_offsets.py, consumer_filters.py, request_modes.py,
kv_config.py
table_files.py        the loader of each file
table_counts.py       numbers of entries, for the report of lost tables at a start
store_traces.py       traces of topics and groups in the rest of a store
settings_file.py      a server's settings file
"""
