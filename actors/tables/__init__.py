"""The broker's tables, each with its JSON file: topics, groups, offsets, filters, request modes.

Tables answer when a change is on disk. Other actors read snapshots (tables.py). Messages, all in
messages.py:

 every table ── WriteFile ──▶ ConfigWriter ── FileWritten ──▶ the table
 every table ── EncodeAnswer ──▶ TableEncoder, which answers the request
 Clients, Receipts ── ReadBody ──▶ TableEncoder, which returns the request
 senders ── CreateTopicOnSend, CreateSystemTopic ──▶ TopicTable ── TopicReady ──▶ the sender
 TopicTable ── RegisterTopic, RegisterAll, WhenRegistered ──▶ Registration
 Registration ── SetOrderTopics, NameServersTold ──▶ TopicTable
 TopicTable ── ForgetTopic ──▶ ConsumerOffsets, then ── RemoveTopic ──▶ CleanFiles
 any actor ── CreateGroup ──▶ GroupTable ── ForgetOffsets ──▶ ConsumerOffsets
 consumers, statistics ── TellOffsets ──▶ ConsumerOffsets ── OffsetsTold ──▶ the requester
 Clients ── RegisterFilters, UnregisterFilters, CompileFirst ──▶ FilterTable
 SlaveSync ── ReplaceTopics, TakeGroups, MergeOffsets, TakeRequestModes ──▶ the tables of a slave
"""
