"""Archives of messages as Parquet: written, compared with the log, compacted and read.

file          contents                                                       needs Spark
files.py      a published archive: its manifests, its atomic publication     no
columns.py    the columns of an archive, and conversion from older ones      no
read.py       reader of archive files in any format                          no
table.py      an archive as a table of Delta or another such format          to write
frame.py      an archive as a DataFrame, by its manifests                    yes
messages.py   the messages of an archive, one after another                  no
write.py      messages → Parquet files, in the tasks that read them          no
run.py        one run of the archive job: plan, write, compare, publish      yes
check.py      comparison of the files written with the plan                  no
verify.py     comparison of an archive with the log                          no
compact.py    few large files made from the small ones of many runs          no
"""
