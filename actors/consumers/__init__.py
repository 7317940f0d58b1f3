"""Connected clients, consumer groups, assignments, queue locks, offset resets, consumer progress.

The room has no messages of its own; its actors talk to other rooms and to clients:

 connections ── Request ──▶ Clients, OffsetReset, ConsumeStats, ConsumerCalls
 connections ── PeerClosed ──▶ Clients ──▶ tables: RegisterFilters, UnregisterFilters, CompileFirst
 connections ── Request ──▶ Assignments ── AskForRoute ──▶ Registration
 NamesrvLink ── RouteAnswered ──▶ Assignments
 ReplyMessage ── AskProducer ──▶ Clients ── CallClient ──▶ ClientCalls
 OffsetReset, ConsumeStats ── TellOffsets ──▶ ConsumerOffsets ── OffsetsTold ──▶ the requester
 OffsetReset, ConsumeStats ── ReadCold ──▶ ColdRead ── QueueWork ──▶ the requester
 ConsumerCalls ── CallClient ──▶ ClientCalls ── CallDone ──▶ ConsumerCalls
"""
