"""The data source `troupemq`: plans and reads the messages of a DataFrame or a stream.

file             what it does                                               needs Spark
options.py       the options, refused by name                               no
plan.py          which queue offsets a job reads, cut into ranges           no
offsets.py       where queues begin and end, what of them options ask for   no
splits.py        the tasks of a read                                        no
origin.py        a store or a cluster, as a plan sees it                    its partition
cluster.py       over the network: routes, ends of queues, places by time   its partition
network.py       over the network: a task reads its ranges                  its partition
raw.py           over the network: in bulk, from TroupeMQ brokers its partition
pulling.py       over the network: by pulls, from any broker                no
row_filter.py    which messages are wanted: tags, SQL92                     no
reading.py       what a task does: ranges → record batches                  its partition
pushdown.py      what filters of Spark leave of a read                      yes
data_source.py   the PySpark data source over all of this                   yes
stream.py        the batches of a stream                                    yes
"""
