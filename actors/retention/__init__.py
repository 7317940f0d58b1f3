"""Retention of the log: age, leases, archives, and the deletion of files and queues.

Messages (those of this room are in messages.py):

 CleanFiles ── DropFiles ──▶ PutMessage ── FilesDropped ──▶ CleanFiles
 CleanFiles ── TrimBefore, RemoveQueues ──▶ Reput ── Trimmed, QueuesRemoved ──▶ CleanFiles
 CleanFiles ── QueuesGone, WritesForbidden ──▶ PutMessage
 CleanFiles ── SyncSoon ──▶ FlushRealTime
 TopicTable, SlaveSync ── RemoveTopic ──▶ CleanFiles ── ForgetTopic ──▶ ConsumerOffsets
"""
