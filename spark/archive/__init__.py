"""An archive of messages as Parquet: written, compared with the log, compacted, read again.

file          what it does                                                   needs Spark
files.py      a published archive: its manifests, its atomic publication     no
columns.py    an archive's columns, and old archives read as if they had them  no
read.py       the files of an archive, whichever format a run has            no
table.py      an archive as a table of Delta or another such format             to write
frame.py      an archive as a DataFrame, by its manifests                     yes
messages.py   its messages, one after the other                              no
write.py      messages → Parquet files, in the tasks that read them          no
run.py        one run of the archive job: plan, write, compare, publish      yes
check.py      what Spark wrote, compared with what was planned               no
verify.py     an archive compared with the log                               no
compact.py    few files of the many small ones that runs leave               no
"""
