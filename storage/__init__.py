"""The store: synchronous files with one owner each; callers pass in the clock and the disk.

    <storePathRootDir>/
    ├── lock                            byte 0 is locked while a broker runs   lock_file
    ├── abort                           exists from start to clean stop        lock_file
    ├── checkpoint                      store times that are on disk           checkpoint
    ├── commitlog/                      every message, in order of arrival     commit_log
    │   ├── 00000000000000000000        named by the offset of its first byte  mapped_file
    │   └── 00000000001073741824        allocated ahead of its use             mapped_file
    ├── consumequeue/                   derived from the commit log            consume_queues
    │   └── TopicTest/
    │       └── 0/
    │           └── 00000000000000000000    20 bytes a message                 consume_queue
    ├── consumequeue_ext/               derived; with enableConsumeQueueExt    extended_queue
    │   └── TopicTest/
    │       └── 0/
    │           └── 00000000000000000000    tag, time, bit map of each message consume_queue_ext
    ├── index/                          derived from the commit log            index
    │   └── 20240131235959123           key → messages; named by local time    index_file
    ├── troupemq/                       TroupeMQ extension                     checked_json
    │   ├── clean_stop.json             state of the store at a clean stop     clean_stop
    │   ├── format.json                 version that may open the store        store_format
    │   ├── queues.json                 list of the queues                     queue_list
    │   ├── leases/                     readers that retain old log files      retention/leases
    │   ├── offsets/                    changes since consumerOffset.json      offset_journal
    │   ├── jobs.json                   Spark jobs that have run               json_config
    │   ├── sinks.json                  progress of Spark queries that write   sink_table
    │   ├── rebuild                     order to rebuild all derived files     store_rebuild
    │   ├── removed/                    queues under removal                   trimming
    │   └── replica                     marks the store of a slave             replica_mark
    ├── transaction/                    TroupeMQ extension; derived            transactions/table
    │   ├── statetable/
    │   │   └── 00000000000000000000    24 bytes a transaction                 transactions/units
    │   └── redolog/
    │       └── covered_offset          log offset that the table covers       transactions/redo_log
    └── config/                         each file with its predecessor, .bak   json_config
        ├── topics.json                                                        topics
        ├── topics.json.crc             checksums, extension; one per file     crc_sidecar
        ├── subscriptionGroup.json                                             groups
        ├── consumerOffset.json                                                offsets
        ├── delayOffset.json                                                   delay_offsets
        ├── consumerFilter.json                                                consumer_filters
        └── messageRequestMode.json     RocketMQ 5.x's, if set                 request_modes

The rooms, each importing only those above it (tests/test_architecture.py):

    files/         disks, mapped files, the lock
    access/        the files of access control, outside the store
    log/           the commit log
    queues/        the consume queues
    index/         the index files
    tables/        the JSON files of config/
    dispatching/   from the record to queue units and index entries
    recovery/      end of the commit log, damage, rebuilds at a start
    reading/       messages for a pull
    transactions/  the table of open transactions
    message_store  opens, recovers and closes all of these
    retention/     disk space, old log files and what was derived from them
    replica/       the commit log of a slave
    scrub/         search for damage while a broker runs
    checking/      `troupemq store check`, for a store not in use
    backup/        `troupemq store backup` and `store restore`, for a store in use
    dump/          any file as readable text

Names, layouts and bytes are those of RocketMQ 4.9.7, which can open the directory, too.
"""
