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
    ├── index/                          derived from the log                   index
    │   └── 20240131235959123           key → messages; named by local time    index_file
    └── config/                         each with its predecessor, .bak        json_config
        ├── topics.json                                                        topics
        ├── subscriptionGroup.json                                             groups
        └── consumerOffset.json                                                offsets

`message_store` opens, recovers and closes all of it; `recovery` and `log_scan` say where the log
ends; `dispatch` derives queue units and index entries from records; `disk` is the only way to any
file. Names, layouts and bytes are those of RocketMQ 4.9.7, which can open the directory too.
"""
