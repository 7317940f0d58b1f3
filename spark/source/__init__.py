"""The data source `troupemq`: plans and reads the messages of a DataFrame or a stream.

file             contents                                                   needs Spark
options.py       options, parsed and checked                                no
plan.py          queue offsets to read, divided into ranges                 no
offsets.py       min and max offsets of queues, selected by options         no
splits.py        tasks of a read                                            no
origin.py        a store or a cluster, for a plan                           its partition
cluster.py       over the network: routes, offsets of queues, by time       its partition
tasks.py         a task: ranges of a store, or over the network             its partition
raw.py           over the network: in bulk, from TroupeMQ brokers           its partition
row_filter.py    selection of queues and messages: filters of Spark, tags   in part
reading.py       work of a task: ranges → record batches                    its partition
data_source.py   the PySpark data source                                    yes
stream.py        batches of a stream                                        yes
"""
