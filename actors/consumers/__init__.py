"""Connected clients, consumer groups, queue locks, offset resets and consumer progress.

The room has no messages of its own; its actors talk to other rooms and to clients:

 connections ── Request ──▶ Clients, OffsetReset, ConsumeStats, ConsumerCalls
 connections ── PeerClosed ──▶ Clients ──▶ tables: RegisterFilters, UnregisterFilters, CompileFirst
 ReplyMessage ── AskProducer ──▶ Clients ── CallClient ──▶ ClientCalls
 OffsetReset, ConsumeStats ── TellOffsets ──▶ ConsumerOffsets ── OffsetsTold ──▶ the requester
 OffsetReset, ConsumeStats ── ReadCold ──▶ ColdRead ── QueueWork ──▶ the requester
 ConsumerCalls ── CallClient ──▶ ClientCalls ── CallDone ──▶ ConsumerCalls
"""
