"""Delayed messages and timers: one Schedule actor per delay level, and the table of their offsets.

A timer waits in a delay level, and is delivered by its own due time (docs/decisions/0053).

PutMessage   → Schedule      TimersStored
Schedule     → DelayOffsets  GetDelayOffset; DelayOffsetReply answers
Schedule     → Reput         AwaitDispatch, then
Schedule     → TimerScan     ScanTimers, part by part; TimersFound answers
Recalls      → Reput         WriteOutIndex; IndexWritten answers
Recalls      → Schedule      CancelTimer; TimerCancelled answers
Schedule     → PutMessage    InternalAppend: the due messages; DueStored answers
Schedule     → DelayOffsets  Delivered
Schedule     → ColdRead      ReadCold, for cold pages
Schedule     → scrubber      VerifyUnit, for an unreadable message; UnitVerified answers
DelayOffsets → Flusher    Sync; Synced answers
SlaveSync    → DelayOffsets  TakeDelayOffsets
"""
