"""Delayed messages: one Schedule actor per delay level, and the table of their offsets.

Schedule     → DelayOffsets  GetDelayOffset; DelayOffsetReply answers
Schedule     → PutMessage    InternalAppend: the due messages; DueStored answers
Schedule     → DelayOffsets  Delivered
Schedule     → ColdRead      ReadCold, for cold pages
Schedule     → scrubber      VerifyUnit, for an unreadable message; UnitVerified answers
DelayOffsets → Flusher    Sync; Synced answers
SlaveSync    → DelayOffsets  TakeDelayOffsets
"""
