"""The store: values in files. Synchronous, one owner per file, clock and disk passed in.

    <storePathRootDir>/
    ├── lock                            byte 0 is locked while a broker runs   lock_file
    ├── abort                           is there from start to clean stop      lock_file
    ├── checkpoint                      what is on disk, as store times        checkpoint
    ├── commitlog/                      every message, one behind the other    commit_log
    │   ├── 00000000000000000000        named by the offset of its first byte  mapped_file
    │   └── 00000000001073741824        made ready ahead of its use            mapped_file_queue
    ├── consumequeue/                   derived from the log                   consume_queues
    │   └── TopicTest/
    │       └── 0/
    │           └── 00000000000000000000    20 bytes a message                 consume_queue
    ├── consumequeue_ext/               derived; with enableConsumeQueueExt    extended_queue
    │   └── TopicTest/
    │       └── 0/
    │           └── 00000000000000000000    tag, time, bit map of each message consume_queue_ext
    ├── index/                          derived from the log                   index
    │   └── 20240131235959123           key → messages; named by local time    index_file
    ├── troupemq/                       ours                                   checked_json
    │   ├── clean_stop.json             how a clean stop left it all           clean_stop
    │   ├── format.json                 which version may open it              store_format
    │   ├── queues.json                 which queues there are                 queue_list
    │   ├── leases/                     readers that keep old log files        retention/leases
    │   ├── jobs.json                   which Spark jobs have had their run    json_config
    │   ├── sinks.json                  how far Spark queries have written     sink_table
    │   ├── rebuild                     make all that is derived anew          store_rebuild
    │   ├── removed/                    queues on their way out                trimming
    │   └── replica                     a slave has this store                 replica_mark
    ├── transaction/                    ours; derived from the log             transactions/table
    │   ├── statetable/
    │   │   └── 00000000000000000000    24 bytes a transaction                 transactions/units
    │   └── redolog/
    │       └── covered_offset          how far that reaches                   transactions/redo_log
    └── config/                         each with its predecessor, .bak        json_config
        ├── topics.json                                                        topics
        ├── topics.json.crc             checksums, ours; each file has them    crc_sidecar
        ├── subscriptionGroup.json                                             groups
        ├── consumerOffset.json                                                offsets
        ├── delayOffset.json                                                   delay_offsets
        └── consumerFilter.json                                                consumer_filters

The rooms, each importing only those above it (tests/test_architecture.py):

    files/         disks, mapped files, the lock
    access/        the files of access control, which lie elsewhere
    log/           the commit log
    queues/        the consume queues
    index/         the index files
    tables/        the JSON files of config/
    dispatching/   from the record to queue units and index entries
    recovery/      where a log ends, what is damaged, what a start makes anew
    reading/       what a pull gets
    transactions/  the table of open transactions
    message_store  opens, recovers and closes all of these
    retention/     room on the disk; old files and what is derived of them
    replica/       the log of a slave
    scrub/         looks for damage while a broker runs
    checking/      `troupemq store check`, while none does
    backup/        `troupemq store backup` and `store restore`, of one that is in use
    dump/          any file, printed for people

Names, layouts and bytes are those of RocketMQ 4.9.7, which can open the directory too.
"""
