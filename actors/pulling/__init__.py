"""Reading for clients: pulls, held pulls, queries by key, id and queue offset, bulk reads.

Connection    → PullMessage    Request: PULL_MESSAGE
PullMessage   → PullHold       Hold: no message yet, or the first one is in doubt
Reput         → PullHold       Arrived, CaughtUp, QueuesEmptied
PullMessage   → scrubber       VerifyUnit; PullHold gets the answer, UnitVerified
PullHold      → PullMessage    Woken: process the pull again
PullHold      → PullMessage    BarrierForHolds, at the stop; LastAnswered answers
any actor     → ColdRead       ReadCold: read cold pages, then send a message
PullMessage   → ConsumerOffsets, consumer_filters, PutMessage
                               CommitOffset, CompileFirst, InternalAppend
Connection    → QueryMessage, QueueOffsets, QueueView, RawRead   Request
QueryMessage  → Reput          WriteOutIndex; IndexWritten answers
QueryMessage, SendBack, ConsumerCalls → RecordChecker   CheckRecord; RecordChecked answers
RecordChecker → Reput          AwaitDispatch; CheckRecord comes back
"""
