"""The JSON tables below config/, each with its predecessor and its checksums.

json_config.py        one such file: read, written, .bak; crc_sidecar.py: its checksums
left_out.py           entries that cannot be used, while the others can
topics.py, groups.py, offsets.py, delay_offsets.py, consumer_filters.py, kv_config.py
table_files.py        which file is read by which loader
table_counts.py       how many entries each has, to say at a start what is lost
store_traces.py       what the rest of a store tells of its topics and groups
settings_file.py      a server's settings file
"""
