"""Sending: check, append, flush, replicate, answer; and the broker's internal appends.

    Connection        → PutMessage      Sends: all sends of one read
    PutMessage        → topic table     CreateTopicOnSend, CreateSystemTopic; TopicReady answers
    PutMessage        → AllocateFile    PrepareFile; FilePrepared or FileFailed answers
    PutReplica        → AllocateFile    BeginLogAt; FilePrepared or FileFailed answers
    any actor         → PutMessage      InternalAppend, InternalAppendGroup; the AppendResult that
                                        they carry answers
    PutMessage        → Reput           Appended: the entries to dispatch
    PutMessage        → GroupCommit     CommitUpTo: answer these when they are durable
    GroupCommit,
      DelayOffsets,
      Transactions,
      HaSlave         → Flusher         Sync; Synced answers
    PutMessage,
      GroupCommit     → HaMaster        LogGrew
    HaMaster          → GroupCommit     Acked
    GroupCommit,
      Reput,
      CleanFiles      → PutMessage      WritesForbidden
    CleanFiles        → PutMessage      DropFiles, QueuesGone
    FlushRealTime     → Reput           WriteOutQueues; QueuesWritten answers; then QueuesSynced
    SendBack,
      ReplyMessage,
      Sink            → PutMessage      InternalAppend

The path of a send, from file to file, is in put_message.py.
"""
