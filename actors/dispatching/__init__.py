"""Dispatch of the commit log to consume queues, index, tables and held pulls.

Reput owns these derived files. CatchUp feeds those of them that are far behind.

    PutMessage    → Reput          Appended
    Reput         → PullHold       Arrived, CaughtUp, QueuesEmptied
    Reput         → PutMessage     WritesForbidden
    Reput         ↔ CatchUp        FollowerBehind, FollowersCaughtUp, RebuildIndex, RebuildTable
    CatchUp       ↔ FlushRealTime  LowerIndexTime, IndexTimeLowered, IndexSynced
    FlushRealTime ↔ Reput          WriteOutQueues, QueuesWritten, QueuesSynced
    CleanFiles    ↔ Reput          TrimBefore, Trimmed, RemoveQueues, QueuesRemoved
    Reput         → CleanFiles     QueuesBegunAnew
    scrubber      ↔ Reput          RepairUnits, RepairsRefused
    QueryMessage  ↔ Reput          WriteOutIndex, IndexWritten
    several       → Reput          AwaitDispatch
    several       ↔ scrubber       VerifyUnit, UnitVerified
    several       ↔ RecordChecker  CheckRecord, RecordChecked
"""
